"""What the site needs beside Markdown: source files that pages name, CONTRIBUTING.md, and manifests that must parse."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
REPOSITORY_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:examples|tests|src|benchmarks|[A-Z]+)\b[^)]*)\)")
REMOTE = re.compile(r"""<(?:script|img|iframe)[^>]*\bsrc="https?://|<link[^>]*\bhref="https?://""")
WORKER_SHIM = re.compile(r"""<script src="https://[^"]*/iframe-worker/shim"></script>""")
MANIFEST = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as the site shows it.

    Raises: FileNotFoundError where a page links to a source file that does not exist, yaml.YAMLError where a manifest
    is not valid YAML.
    """
    for manifest in MANIFEST.findall(markdown):
        list(yaml.safe_load_all(manifest))
    if page.file.src_uri == "contributing.md":
        _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition("\n")
        markdown += rest.replace("](docs/", "](")
    folder = Path(page.file.abs_src_path).parent
    return REPOSITORY_LINK.sub(lambda found: _as_path(found, folder), markdown)


def _as_path(found: re.Match[str], folder: Path) -> str:
    """A link to a file of the repository as its path: the site holds pages only."""
    target = Path(os.path.normpath(folder / found[2]))
    if target.is_relative_to(ROOT / "docs"):
        return found[0]  # a page
    if not target.exists():
        raise FileNotFoundError(f"{folder}: link to {found[2]}, which does not exist")
    inside = target.relative_to(ROOT).as_posix()
    return f"`{inside}`" if found[1].strip("`").endswith(inside) else f"{found[1]} (`{inside}`)"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The page without the script that the theme takes from elsewhere for its search on `file://`.

    Raises: ValueError where anything else is loaded from elsewhere: the site works offline.
    """
    return _local(output, page.file.src_uri)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """The same for pages without a source, such as 404.html."""
    return _local(output_content, template_name)


def _local(output: str, name: str) -> str:
    output = WORKER_SHIM.sub("", output)
    remote = REMOTE.search(output)
    if remote is not None:
        raise ValueError(f"{name} loads something from elsewhere: {remote[0]}...")
    return output
