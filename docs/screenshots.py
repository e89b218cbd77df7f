"""Make the screenshots of the live page with headless Chromium: `python docs/screenshots.py`.

The page shows a simulation, so that its contents are the same on every machine. Light and dark, with 9 and 62 sites.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.server import embed
from tradewind.network import Network
from tradewind.schemes import ExecutionModel
from tradewind.sim import SlowLink, simulate

IMAGES = Path(__file__).parent / "images"
WIDTH = 1280
LONGEST_S = 120
REGIONS = (
    "aws:us-east-1,aws:us-west-2,aws:eu-west-1,azure:eastus,azure:westeurope,azure:westus,gcp:us-east4-a,"
    "gcp:europe-west4-a,gcp:us-west1-a"
)


def main() -> None:
    """Write all screenshots to docs/images."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("screenshots need Chromium. Install it, such as with: apt-get install chromium")
    pages = {9: (nine_sites(), 1930), 62: (all_regions(), 2424)}  # whole cards
    with tempfile.TemporaryDirectory() as folder:
        for sites, (page, height) in pages.items():
            (Path(folder) / "page.html").write_bytes(page)
            for theme in ("light", "dark"):
                image = IMAGES / f"watch-{sites}-{theme}.png"
                shoot(browser, Path(folder), f"page.html?theme={theme}", image, height)
                print(f"wrote {image.relative_to(IMAGES.parent.parent)}")


def shoot(browser: str, folder: Path, page: str, image: Path, height: int) -> None:
    """Write a picture of a page in a folder."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]
    where = [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}", f"--screenshot={image}"]
    command = [browser, *flags, *where, f"file://{folder}/{page}"]
    subprocess.run(command, check=True, timeout=LONGEST_S, capture_output=True)


def nine_sites() -> bytes:
    """Nine regions of three clouds, where a link becomes slow after 30 s."""
    found = load_network("skyplane", regions=REGIONS)
    return page_of(found, "bsp+mtree", 1_000_000_000, SlowLink("aws:us-east-1", "gcp:europe-west4-a", 0.25, 30.0))


def all_regions() -> bytes:
    """The 62 regions of three clouds."""
    return page_of(load_network("skyplane"), "bsp+mtree", 400_000_000)


def page_of(network: Network, scheme: str, nbytes: int, *faults: SlowLink) -> bytes:
    """The page of a simulation of one minute."""
    execution: ExecutionModel | None = "chunked" if faults else None
    result = simulate(network, scheme, 60, nbytes=nbytes, faults=faults, record="flows", execution=execution)
    assert result.trace is not None
    return embed(msgspec.json.encode(RunModel.of(result.trace).view()))


if __name__ == "__main__":
    main()
