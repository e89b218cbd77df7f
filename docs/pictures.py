"""Draw the pictures of the documentation as plain SVG, the same bytes on every machine.

`python docs/generate.py` writes them. Pictures of concepts are drawn from the numbers below, pictures of results from
docs/benchmarks/data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
DATA = DOCS / "benchmarks" / "data"
INK, GREY, PALE = "#1f2933", "#7b8794", "#e4e7eb"
TEAL, ORANGE, BLUE, RED = "#00796b", "#e07b00", "#2563eb", "#c62828"
Point = tuple[float, float]


# --- shapes --------------------------------------------------------------------------------------------------------


def text(x: float, y: float, words: str, *, size: int = 14, colour: str = INK, anchor: str = "middle") -> str:
    """A line of text."""
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{safe}</text>'


def site(at: Point, name: str, colour: str = INK) -> str:
    """A site as a named disc."""
    disc = f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="22" fill="white" stroke="{colour}" stroke-width="2.5"/>'
    return disc + text(at[0], at[1] + 5, name, colour=colour)


def line(a: Point, b: Point, colour: str = GREY, *, width: float = 2, dashed: bool = False) -> str:
    """A line without an arrow."""
    dash = ' stroke-dasharray="6 5"' if dashed else ""
    ends = f'x1="{a[0]:g}" y1="{a[1]:g}" x2="{b[0]:g}" y2="{b[1]:g}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"{dash}/>'


def arrow(a: Point, b: Point, colour: str, *, shift: float = 0, gap: float = 26, dashed: bool = False) -> str:
    """An arrow from a to b that leaves room for the sites, moved sideways by `shift`."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = (dx * dx + dy * dy) ** 0.5
    ux, uy = dx / length, dy / length
    start = (a[0] + ux * gap - uy * shift, a[1] + uy * gap + ux * shift)
    end = (b[0] - ux * (gap + 8) - uy * shift, b[1] - uy * (gap + 8) + ux * shift)
    tip = (end[0] + ux * 8, end[1] + uy * 8)
    wings = [(end[0] - uy * 5, end[1] + ux * 5), tip, (end[0] + uy * 5, end[1] - ux * 5)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in wings)
    rounded = [(round(x, 1), round(y, 1)) for x, y in (start, end)]
    return line(rounded[0], rounded[1], colour, dashed=dashed) + f'<polygon points="{points}" fill="{colour}"/>'


def box(x: float, y: float, width: float, height: float, colour: str, fill: str = "white") -> str:
    """A rectangle with round corners."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} rx="6" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def picture(width: int, height: int, parts: Iterable[str], title: str) -> str:
    """The file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    body = "\n".join([f"<title>{title}</title>", ground, *parts])
    return f'{head} font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'


# --- concepts ------------------------------------------------------------------------------------------------------


def plan_picture() -> str:
    """Two shards on four sites."""
    parts = []
    trees = (
        ("shard 0: 60% of the array, root A", TEAL, "A", (("D", "B"), ("B", "A"), ("C", "A")), 0),
        ("shard 1: 40% of the array, root D", ORANGE, "D", (("A", "C"), ("C", "D"), ("B", "D")), 380),
    )
    for title, colour, root, edges, left in trees:
        places = {"A": (left + 80, 90), "B": (left + 270, 90), "C": (left + 80, 230), "D": (left + 270, 230)}
        names = sorted(places)
        parts += [line(places[a], places[b], PALE, width=3) for i, a in enumerate(names) for b in names[i + 1 :]]
        for child, parent in edges:
            parts.append(arrow(places[child], places[parent], colour, shift=6))
            parts.append(arrow(places[parent], places[child], colour, shift=6, dashed=True))
        parts += [site(place, name, colour if name == root else INK) for name, place in places.items()]
        parts.append(text(left + 175, 40, title, size=15, colour=colour))
    legend = "solid: partial sums climb the reduce tree to the root; dashed: the result comes down the broadcast tree"
    parts.append(text(365, 290, legend, size=13, colour=GREY))
    return picture(730, 310, parts, "A plan: two shards, each with its own tree")


def limit_picture() -> str:
    """A cut between two sides."""
    left = {"A": (90.0, 90.0), "B": (90.0, 230.0), "C": (230.0, 160.0)}
    right = {"D": (480.0, 100.0), "E": (480.0, 230.0)}
    parts = [line(left[a], left[b], GREY) for a, b in (("A", "B"), ("A", "C"), ("B", "C"))]
    parts.append(line(right["D"], right["E"], GREY))
    parts += [line(left["C"], right["D"], RED, width=4), line(left["B"], right["E"], RED, width=4)]
    parts += [text(345, 118, "100 Mbps", colour=RED), text(300, 252, "50 Mbps", colour=RED)]
    parts.append(line((390, 40), (390, 275), INK, dashed=True))
    parts += [site(place, name) for name, place in {**left, **right}.items()]
    parts += [text(160, 40, "side 1"), text(480, 40, "side 2")]
    parts.append(
        text(
            300, 305, "150 Mbps cross in each direction, and all that one side knows must cross:", size=13, colour=GREY
        )
    )
    parts.append(
        text(300, 325, "no plan can be faster than 150 Mbps. 100 MB take at least 5.3 s.", size=13, colour=GREY)
    )
    return picture(600, 345, parts, "The limit: what must cross between two sides")


def round_picture() -> str:
    """Messages of one round over time."""
    rows = {"controller": 60.0, "rank 0": 130.0, "rank 1": 200.0, "rank 2": 270.0}
    parts = [line((110, y), (700, y), PALE, width=3) for y in rows.values()]
    parts += [text(100, y + 5, name, anchor="end") for name, y in rows.items()]
    top = rows["controller"]
    for index, name in enumerate(("rank 0", "rank 1", "rank 2")):
        parts.append(arrow((135 + 25 * index, rows[name]), (150 + 25 * index, top), GREY, gap=4))
        parts.append(arrow((245, top), (265, rows[name]), TEAL, gap=4))
        parts.append(arrow((500 + 18 * index, rows[name]), (520 + 18 * index, top), GREY, gap=4))
        parts.append(arrow((600, top), (620, rows[name]), TEAL, gap=4))
    for index in range(5):
        x = 290 + 34 * index
        parts.append(arrow((x, rows["rank 2"]), (x + 18, rows["rank 1"]), BLUE, gap=4))
        parts.append(arrow((x + 14, rows["rank 1"]), (x + 32, rows["rank 0"]), BLUE, gap=4))
        parts.append(arrow((x + 34, rows["rank 0"]), (x + 50, rows["rank 1"]), ORANGE, gap=4))
        parts.append(arrow((x + 46, rows["rank 1"]), (x + 62, rows["rank 2"]), ORANGE, gap=4))
    labels = ((165, "Ready", GREY), (250, "Start", TEAL), (395, "chunks up, sums down", BLUE), (530, "Finished", GREY))
    parts += [text(x, 35, words, size=13, colour=colour) for x, words, colour in (*labels, (615, "Commit", TEAL))]
    parts.append(
        text(
            400,
            310,
            "until Commit, inputs are only read; after it, every member holds the same result",
            size=13,
            colour=GREY,
        )
    )
    return picture(720, 330, parts, "A round")


def scheme_picture() -> str:
    """Policy and planner."""
    parts = [box(30, 60, 200, 90, TEAL), box(330, 60, 200, 90, ORANGE), box(630, 60, 130, 90, INK)]
    parts += [text(130, 95, "policy", size=16, colour=TEAL), text(130, 122, "who, and when", colour=GREY)]
    parts += [text(430, 95, "planner", size=16, colour=ORANGE), text(430, 122, "by which trees", colour=GREY)]
    parts += [text(695, 95, "round", size=16), text(695, 122, "carries it out", colour=GREY)]
    parts += [arrow((230, 105), (330, 105), INK, gap=4), text(280, 92, "members", size=12)]
    parts += [arrow((530, 105), (630, 105), INK, gap=4), text(580, 92, "plan", size=12)]
    parts += [text(130, 45, "ready ranks", size=12, colour=GREY), text(430, 45, "network", size=12, colour=GREY)]
    rows = (("crew", "partial, p = 4", "scatter"), ("mtree", "bsp", "mtree"), ("ds-sync", "shuffle", "ring"))
    for index, (name, policy, planner) in enumerate(rows):
        y = 195 + 28 * index
        parts += [text(130, y, policy, colour=TEAL), text(430, y, planner, colour=ORANGE), text(695, y, f"= {name}")]
        parts.append(text(280, y, "+"))
    return picture(790, 275, parts, "A scheme: a policy and a planner")


# --- results -------------------------------------------------------------------------------------------------------


def _data(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())["data"]


def axis(x: float, y: float, width: float, height: float, ticks: Sequence[tuple[float, str]], words: str) -> list[str]:
    """A frame with ticks on its lower edge."""
    parts = [
        line((x, y), (x, y + height), GREY, width=1),
        line((x, y + height), (x + width, y + height), GREY, width=1),
    ]
    for place, label in ticks:
        parts.append(line((place, y + height), (place, y + height + 5), GREY, width=1))
        parts.append(text(round(place, 1), y + height + 20, label, size=12, colour=GREY))
    parts.append(text(x + width / 2, y + height + 40, words, size=12, colour=GREY))
    return parts


def curve(points: Sequence[Point], colour: str) -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'


def loss_curves(left: float, top: float, width: float, height: float) -> list[str]:
    """Loss against time of the stored training."""
    runs = _data("training")
    longest = max(runs[name]["seconds"][-1] for name in ("gloo", "tradewind"))
    most = 2.4
    ticks = [(left + width * s / longest, f"{s:g}") for s in range(0, int(longest) + 1, 10 if longest < 80 else 20)]
    parts = axis(left, top, width, height, ticks, "seconds of training")
    for name, shown, colour in (("gloo", "Gloo", GREY), ("tradewind", "Tradewind", TEAL)):
        seconds, loss = [0.0, *runs[name]["seconds"]], [2.303, *runs[name]["loss"]]
        points = [
            (left + width * s / longest, top + height * (1 - v / most)) for s, v in zip(seconds, loss, strict=True)
        ]
        parts.append(curve(points, colour))
        place = top + (40 if name == "gloo" else 60)
        parts.append(text(left + width, place, f"{shown}: {seconds[-1]:.0f} s", colour=colour, anchor="end"))
    parts += [
        text(left - 10, top + height * (1 - v / most) + 4, f"{v:g}", size=12, colour=GREY, anchor="end")
        for v in (0, 1, 2)
    ]
    parts.append(text(left + width / 2, top - 22, "the same training, 100 steps on 4 sites", size=15))
    parts.append(text(left + width / 2, top - 4, "loss on held-out digits", size=12, colour=GREY))
    return parts


def bars(left: float, top: float, width: float, height: float) -> list[str]:
    """Seconds of an all-reduce by the stored contest."""
    networks = [one for one in _data("wan")["networks"] if one["sites"] > 2]
    systems = (
        ("gloo", "Gloo", GREY),
        ("gloo, best order", "Gloo, best order", BLUE),
        ("tradewind auto", "Tradewind", TEAL),
    )
    longest = max(row["seconds"] for one in networks for row in one["rows"])
    parts = axis(left, top, width, height, [], "sites")
    for index, one in enumerate(networks):
        by_name = {row["system"]: row["seconds"] for row in one["rows"]}
        start = left + 24 + index * width / len(networks)
        for place, (name, _, colour) in enumerate(systems):
            tall = height * by_name[name] / (longest * 1.1)
            x = start + 34 * place
            size = f'x="{x:.1f}" y="{top + height - tall:.1f}" width="30" height="{tall:.1f}"'
            parts.append(f'<rect {size} fill="{colour}"/>')
            parts.append(
                text(
                    round(x + 15, 1), round(top + height - tall - 5, 1), f"{by_name[name]:.1f}", size=12, colour=colour
                )
            )
        parts.append(text(round(start + 49, 1), top + height + 20, str(one["sites"]), size=12, colour=GREY))
    parts.append(text(left + width / 2, top - 22, "all-reduce of 40 MB on emulated links", size=15))
    for place, (_, shown, colour) in enumerate(systems):
        parts.append(text(left + width / 2 + (-120, 0, 120)[place], top - 4, shown, size=12, colour=colour))
    parts.append(text(left - 10, top + 14, "seconds", size=12, colour=GREY, anchor="end"))
    return parts


def training_picture() -> str:
    """Loss against time."""
    return picture(560, 330, loss_curves(60, 50, 470, 220), "Loss against time over Gloo and over Tradewind")


def headline_picture() -> str:
    """Both results side by side."""
    parts = [*bars(70, 50, 390, 220), *loss_curves(530, 50, 370, 220)]
    return picture(930, 330, parts, "All-reduce and training beside Gloo")


def predictions_picture() -> str:
    """Live against predicted times of random networks, on logarithmic scales."""
    left, top, side = 70.0, 40.0, 320.0
    rows = _data("predictions")["networks"]
    seconds = [row[key] for row in rows for key in ("predicted_s", "live_s")]
    low, high = math.log(min(seconds) / 1.2), math.log(max(seconds) * 1.2)

    def at(value: float) -> float:
        return side * (math.log(value) - low) / (high - low)

    ticks = [value for value in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0) if low < math.log(value) < high]
    parts = axis(left, top, side, side, [(left + at(v), f"{v:g}") for v in ticks], "predicted seconds")
    parts += [
        text(left - 10, round(top + side - at(v) + 4, 1), f"{v:g}", size=12, colour=GREY, anchor="end") for v in ticks
    ]
    parts.append(text(left + 6, top - 8, "live seconds", size=12, colour=GREY, anchor="start"))
    first, last = math.exp(low), math.exp(high) / 1.15
    for factor, dashed in ((1.0, False), (1.15, True)):
        ends = [(left + at(x), top + side - at(x * factor)) for x in (first, last)]
        parts.append(line(ends[0], ends[1], PALE if dashed else GREY, width=1, dashed=dashed))
    for row in rows:
        x, y = left + at(row["predicted_s"]), top + side - at(row["live_s"])
        colour = TEAL if row["backend"] == "htb" else ORANGE
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.7"/>')
    parts.append(text(left + side, top + side - 40, "rates only (htb)", size=12, colour=TEAL, anchor="end"))
    parts.append(text(left + side, top + side - 22, "with latency (delay)", size=12, colour=ORANGE, anchor="end"))
    parts.append(
        text(left + side, top + side - 4, "dashed: 15% longer than predicted", size=12, colour=GREY, anchor="end")
    )
    return picture(430, 430, parts, "Live against predicted times of random networks")


def pictures() -> dict[Path, str]:
    """Every picture by its file."""
    made = {
        "plan": plan_picture,
        "limit": limit_picture,
        "round": round_picture,
        "scheme": scheme_picture,
        "training": training_picture,
        "headline": headline_picture,
    }
    if (DATA / "predictions.json").exists():
        made["predictions"] = predictions_picture
    return {IMAGES / f"{name}.svg": draw() for name, draw in made.items()}
