"""The page of all claims: what each paper says, what we see, and why they differ.

It is `docs/benchmarks/reproduction.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tradewind.experiments.papers import LIVE, every_name, experiment
from tradewind.experiments.papers.report import Verdict, pooled
from tradewind.experiments.papers.saved import SavedClaim, SavedOutcome
from tradewind.experiments.papers.unjudged import UNJUDGED

PAPERS = {
    "mtree": "MTREE",
    "crew": "CREW",
    "selective": "Selective Reduce",
    "ds-sync": "DS-Sync",
    "netstorm": "NetStorm",
    "tradewind": "All of them at once, and Tradewind",
}
OLD = "†"
_UNTESTED = "Reason not tested."
_INTRODUCTION = f"""# What the papers claim, and what we see

Every claim of the five papers that a computation can judge, in our words with the paper's numbers, beside our own
figure. One claim is one row, with a verdict from the simulator or the planner (*computed*) and one from real
connections in an emulated network ([*live*](../guides/reproduce.md#live-figures)):

- **holds**: the direction is right in all cases, with at least 80% of the claimed gain (where the paper says "up to":
  in our best case). A gain is what goes beyond 1: twice as fast is a gain of 1. Numbers that the paper calls equal
  differ by 10% at most.
- **holds in part**: the direction is right, with at least half of the claimed gain, in at least half of the cases.
- **does not hold**: everything else. The remark says why, and which experiment switched that cause off; or that the
  reason was not tested.

A larger gain than claimed counts as held. Where several experiments judge a claim, it holds if it does in all of them,
and in part if it does at least in part in half of them. Quick runs (`--quick`) give no verdict: *to be run again*, like
results whose stored numbers do not decide it. {OLD} marks a result that is older than the code it judges. Where a paper
contradicts itself or is silent, the notes of the experiment say which reading was built: `tradewind reproduce NAME`
shows them with all numbers, `tradewind reproduce NAME --live` those of a live run.

This page is generated from the JSON files of earlier runs in `docs/benchmarks/data/reproduction`:
`tradewind reproduce --page FILE --out DIR`.
"""


class Seen(NamedTuple):
    """An experiment's result on a claim."""

    claim: SavedClaim
    outcome: SavedOutcome

    @property
    def is_live(self) -> bool:
        """Whether it was measured on real connections."""
        return self.outcome.name.endswith(LIVE)


@dataclass
class Row:
    """A claim of a paper with everything that was seen of it, computed and live."""

    paper: str
    text: str
    seen: list[Seen] = field(default_factory=list)

    def verdict(self, live: bool | None = None) -> Verdict | None:
        """The verdict of the live or the computed experiments, or of both; None if no full run has one."""
        found = [one.claim.verdict for one in self.seen if not one.outcome.quick and live in (None, one.is_live)]
        judged = [verdict for verdict in found if verdict is not None]
        return pooled(judged) if judged else None


def rows_of(saved: Mapping[str, SavedOutcome]) -> list[Row]:
    """All claims, each once, under the first experiment that judges it."""
    rows: dict[str, Row] = {}
    for name in every_name():
        for claim in saved[name].claims if name in saved else ():
            row = rows.setdefault(claim.text, Row(name.partition("/")[0], claim.text))
            row.seen.append(Seen(claim, saved[name]))
    return list(rows.values())


def reproduction_page(saved: Mapping[str, SavedOutcome], header: str = "") -> str:
    """The page, in Markdown, from the outcomes at hand; experiments that were not run are named.

    `header` is Markdown about when, where and with which code they were run.
    """
    rows = rows_of(saved)
    lines = [_INTRODUCTION, *([header] if header else []), *_summary(rows, saved)]
    for paper, title in PAPERS.items():
        own = [row for row in rows if row.paper == paper]
        lines += ["", f"## {title}", "", *_paper(paper, own, saved)]
    return "\n".join(lines) + "\n"


def _counts(rows: list[Row]) -> Counter[Verdict | None]:
    return Counter(row.verdict() for row in rows)


def counts_sentence(saved: Mapping[str, SavedOutcome]) -> str:
    """The number of the five papers' claims and of their verdicts, as one sentence."""
    counts = _counts([row for row in rows_of(saved) if row.paper != "tradewind"])
    judged = counts.total() - counts[None]
    told = f"{counts[Verdict.HOLDS]} hold, {counts[Verdict.IN_PART]} hold in part, {counts[Verdict.FAILS]} do not"
    return f"Of {judged} claims judged, {told}."


def _summary(rows: list[Row], saved: Mapping[str, SavedOutcome]) -> Iterator[str]:
    yield "| paper | claims judged | " + " | ".join(Verdict) + " | to be run again | not judged |"
    yield "|---|---|---|---|---|---|---|"
    for paper, title in PAPERS.items():
        counts = _counts([row for row in rows if row.paper == paper])
        cells = [str(counts[verdict]) for verdict in (*Verdict, None)]
        yield f"| {title} | {counts.total() - counts[None]} | {' | '.join(cells)} | {len(UNJUDGED[paper])} |"
    yield ""
    yield f"{counts_sentence(saved)} A claim counts once, with its computed and live experiments together."
    missing = [name for name in every_name() if name not in saved]
    if missing:
        yield ""
        yield "Not run for this page: " + ", ".join(f"`{name}`" for name in missing) + "."


def _paper(paper: str, rows: list[Row], saved: Mapping[str, SavedOutcome]) -> Iterator[str]:
    outcomes = [saved[name] for name in every_name() if name.startswith(f"{paper}/") and name in saved]
    if not outcomes:
        yield "Nothing has been run."
    if rows:
        yield "| the paper says | computed | live | we see | remarks |"
        yield "|---|---|---|---|---|"
    for row in rows:
        cells = (row.text, _verdict(row, live=False), _verdict(row, live=True), _seen(row), _remarks(row))
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


def _verdict(row: Row, live: bool) -> str:
    found = [one for one in row.seen if one.is_live == live]
    verdict = row.verdict(live)
    if verdict is None:
        return "to be run again" if found else ""
    old = any(one.outcome.is_old for one in found if not one.outcome.quick)
    return f"**{verdict}**{OLD if old else ''}"


def _seen(row: Row) -> str:
    return "; ".join(f"`{one.outcome.name}`: {one.claim.ours}" for one in row.seen)


def _remarks(row: Row) -> str:
    """The reasons, each once, and for each claim that does not hold how its reason was tested."""
    found: list[str] = []
    for one in row.seen:
        found.append(one.claim.reason)
        if one.claim.verdict is Verdict.FAILS and not one.outcome.quick:
            found.append(one.claim.tested or _UNTESTED)
    return " ".join(text for text in dict.fromkeys(found) if text)


def _runs(outcomes: list[SavedOutcome]) -> Iterator[str]:
    """How the experiments were run, grouped by number of trials and day."""
    how: dict[str, list[str]] = {}
    for one in outcomes:
        usual = "one trial" if one.name.endswith(LIVE) else "the published number of trials"
        usual = "a quick run's few trials on a coarse grid" if one.quick else usual
        words = usual if one.trials is None else f"{one.trials} trials"
        words += f" on {one.date}" if one.date else ""
        how.setdefault(words, []).append(one.name.partition("/")[2])
    for words, names in how.items():
        yield f"{', '.join(names)} with {words}" if len(how) > 1 else f"all with {words}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def outdated_claims(saved: Mapping[str, SavedOutcome]) -> list[str]:
    """The saved experiments whose claims differ from the code's, and which must be run again."""
    known = [name for name in saved if name in every_name()]
    return [name for name in known if tuple(claim.text for claim in saved[name].claims) != experiment(name).claims]
