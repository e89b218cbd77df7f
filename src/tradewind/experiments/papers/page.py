"""The page of all claims: what each paper says, what we see, and why they differ.

It is `docs/benchmarks/reproduction.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tradewind.experiments.papers import LIVE, every_name, experiment
from tradewind.experiments.papers.report import Verdict
from tradewind.experiments.papers.saved import SavedOutcome
from tradewind.experiments.papers.unjudged import UNJUDGED

PAPERS = {
    "mtree": "MTREE",
    "crew": "CREW",
    "selective": "Selective Reduce",
    "ds-sync": "DS-Sync",
    "netstorm": "NetStorm",
    "tradewind": "All of them at once, and Tradewind",
}
_INTRODUCTION = """# What the papers claim, and what we see

Every claim of the five papers that a computation can judge, in our words with the paper's numbers, beside our own
figure. A claim **holds** where we see it in all cases that it speaks of, **holds in part** in some of them, and **does
not hold** in none; the remarks give the margin within which a number counts as met. Where a paper contradicts itself or
is silent, the notes of the experiment say which reading was built: `tradewind reproduce NAME` shows them with all
numbers, and writes them as CSV, PNG and JSON. Experiments whose name ends in `/live` ran on real connections
in an emulated network ([live](../guides/reproduce.md#live-figures)): `tradewind reproduce NAME --live`.

This page is generated from the JSON files of earlier runs in `docs/benchmarks/data/reproduction`:
`tradewind reproduce --page FILE --out DIR`.
"""


def reproduction_page(saved: Mapping[str, SavedOutcome], header: str = "") -> str:
    """The page, in Markdown, from the outcomes at hand; experiments that were not run are named.

    `header` is Markdown about when, where and with which code they were run.
    """
    lines = [_INTRODUCTION, *([header] if header else []), *_summary(saved)]
    for paper, title in PAPERS.items():
        lines += ["", f"## {title}", "", *_paper(paper, saved)]
    return "\n".join(lines) + "\n"


def _summary(saved: Mapping[str, SavedOutcome]) -> Iterator[str]:
    yield "| paper | claims judged | " + " | ".join(Verdict) + " | not judged |"
    yield "|---|---|---|---|---|---|"
    for paper, title in PAPERS.items():
        counts = Counter(claim.verdict for one in _of(paper, saved) for claim in one.claims)
        cells = [str(counts[verdict]) for verdict in Verdict]
        yield f"| {title} | {counts.total()} | {' | '.join(cells)} | {len(UNJUDGED[paper])} |"
    missing = [name for name in every_name() if name not in saved]
    if missing:
        yield ""
        yield "Not run for this page: " + ", ".join(f"`{name}`" for name in missing) + "."


def _of(paper: str, saved: Mapping[str, SavedOutcome]) -> list[SavedOutcome]:
    return [saved[name] for name in every_name() if name.startswith(f"{paper}/") and name in saved]


def _paper(paper: str, saved: Mapping[str, SavedOutcome]) -> Iterator[str]:
    outcomes = _of(paper, saved)
    if not outcomes:
        yield "Nothing has been run."
    if any(one.claims for one in outcomes):
        yield "| experiment | the paper says | verdict | we see | remarks |"
        yield "|---|---|---|---|---|"
    for one in outcomes:
        for claim in one.claims:
            cells = (f"`{one.name}`", claim.text, f"**{claim.verdict}**", claim.ours, claim.reason)
            yield "| " + " | ".join(map(_cell, cells)) + " |"
    if outcomes:
        yield ""
        yield "Runs: " + "; ".join(_runs(outcomes)) + "."
    if UNJUDGED[paper]:
        yield ""
        yield "Not judged here:"
        yield ""
        for text, why in UNJUDGED[paper]:
            yield f"- {text} *{why}*"


def _runs(outcomes: list[SavedOutcome]) -> Iterator[str]:
    """How the experiments were run, grouped by number of trials."""
    how: dict[str, list[str]] = {}
    for one in outcomes:
        usual = "one trial" if one.name.endswith(LIVE) else "the published number of trials"
        usual = "a quick run's few trials on a coarse grid" if one.quick else usual
        how.setdefault(usual if one.trials is None else f"{one.trials} trials", []).append(one.name.partition("/")[2])
    for words, names in how.items():
        yield f"{', '.join(names)} with {words}" if len(how) > 1 else f"all with {words}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def outdated_claims(saved: Mapping[str, SavedOutcome]) -> list[str]:
    """The saved experiments whose claims differ from the code's, and which must be run again."""
    known = [name for name in saved if name in every_name()]
    return [name for name in known if tuple(claim.text for claim in saved[name].claims) != experiment(name).claims]
