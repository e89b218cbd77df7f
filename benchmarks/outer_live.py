"""Streaming DiLoCo on shaped links: how much of the time ranks compute, and what they send.

Real processes on the sites of a lab (`delay`: every site has 100 Mbps out and in, whatever it sends to whom;
[source](../../examples/lab_outer.py)): averaging at every step, DiLoCo, and Streaming DiLoCo with int4. A step is a
pause of half a second, so that the processors of the machine are free for the rounds; utilisation is the time of all
steps over the whole time. Sent bytes are those of the first site's data connections, headers of frames and probes of
links included; the peak is the step in which it sent most, which may be one with a train of probes. `SITES` in the
environment is the number of sites (8).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from tradewind.control.awareness import Awareness
from tradewind.units import format_size
from tradewind.wire.codecs import wire_bytes

EXAMPLE = Path(__file__).parents[1] / "examples" / "lab_outer.py"
SITE_MBPS = 100
LONGEST_S = 560
LEAST_UTILISATION, LEAST_FEWER = 0.95, 50


def mesh(sites: int, mbps: float) -> dict[str, Any]:
    """A full mesh whose sites have so much bandwidth each."""
    names = [f"site{k}" for k in range(sites)]
    return {
        "name": f"mesh of {mbps:g} Mbps a site",
        "sites": [{"name": name, "egress_mbps": mbps, "ingress_mbps": mbps} for name in names],
        "links": [
            {"src": a, "dst": b, "bandwidth_mbps": mbps, "latency_ms": 0} for a in names for b in names if a != b
        ],
    }


def run(out: TextIO) -> dict[str, Any]:
    """Train with each method, and write one table."""
    sites, load = int(os.environ.get("SITES", "8")), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sites.json"
        file.write_text(json.dumps(mesh(sites, SITE_MBPS)))
        lab = ["lab", "run", str(file), "--scale", "1", "--no-calibrate", "--", sys.executable, str(EXAMPLE)]
        command = [sys.executable, "-m", "tradewind", *lab, "--out", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_S)
        found: dict[str, Any] = json.loads((Path(folder) / "runs.json").read_text())
    runs, options = found["runs"], found["options"]
    base = runs["every step"]
    out.write(
        f"{sites} sites, {base['parameters']:,} parameters, {options['steps']} steps of {options['step']} s, "
        f"H = {options['every']}, {options['fragments']} fragments, tau = {options['delay']}. "
        f"Load of the machine at the start: {load:.1f}.\n\n"
        "| method | utilisation | waited | rounds | sent | times fewer | peak in a step | of the first |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    for name, each in runs.items():
        fewer, peak = (
            base["sent_bytes"] / each["sent_bytes"],
            base["most_bytes_in_a_step"] / each["most_bytes_in_a_step"],
        )
        out.write(f"| {name} | {each['utilisation']:.1%} | {each['blocked_s']:.1f} s | {each['rounds']} ")
        out.write(f"| {format_size(each['sent_bytes'])} | {fewer:.1f} | {format_size(each['most_bytes_in_a_step'])} ")
        out.write(f"| 1/{peak:.0f} |\n")
    _arithmetic(out, sites, base["parameters"], options["fragments"])
    last = runs["streaming-diloco int4"]
    peak = base["most_bytes_in_a_step"] / last["most_bytes_in_a_step"]
    out.write(f"\n- Utilisation of Streaming DiLoCo {last['utilisation']:.1%}, aim {LEAST_UTILISATION:.0%}: ")
    out.write(f"{'met' if last['utilisation'] >= LEAST_UTILISATION else 'missed'}.\n")
    out.write(f"- Its peak 1/{peak:.0f} of that of averaging at every step, aim 1/{LEAST_FEWER}: ")
    out.write(f"{'met' if peak >= LEAST_FEWER else 'missed'}.\n")
    return found


def _arithmetic(out: TextIO, sites: int, parameters: int, fragments: int) -> None:
    """What rounds send by their sizes alone."""
    whole, part = (wire_bytes(codec, -(-parameters // parts), 4) for codec, parts in (("none", 1), ("int4", fragments)))
    factor = 2 * (sites - 1) / sites
    out.write(
        f"\nBy their sizes, without headers and probes, a site sends 2 (n - 1) / n = {factor:g} times an array in a "
        f"round: {factor * whole:,.0f} bytes of {whole:,} for averaging at every step, and {factor * part:,.0f} of "
        f"{part:,} for a fragment in int4, {whole / part:.0f} times fewer. A peak beyond that contains parts of two "
        f"rounds, or a train of probes, for which a site may spend {Awareness().explore_share:.0%} of what it sends.\n"
    )
