"""The page of all claims: what each paper says, what we see, and why they differ.

It is `docs/benchmarks/reproduction.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from tradewind.experiments.papers import LIVE, every_name, experiment
from tradewind.experiments.papers.report import Finding, Switched, Verdict, pooled
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
_UNTESTED, _UNKNOWN = "Reason not tested.", "The cause is unknown."
_INTRODUCTION = f"""# What the papers claim, and what we see

Every claim of the five papers that a computation can judge, in our words with the paper's numbers, beside our own
figure. One claim is one row, with a verdict from the simulator or the planner (*computed*) and one from real
connections in an emulated network ([*live*](../guides/reproduce.md#live-figures)):

- **holds**: the direction is right in all cases, with at least 80% of the claimed gain (where the paper says "up to":
  in our best case). A gain is what goes beyond 1: twice as fast is a gain of 1. Numbers that the paper calls equal
  differ by 10% at most.
- **holds in part**: the direction is right, with at least half of the claimed gain, in at least half of the cases.
- **does not hold**: everything else.

Where a claim does not hold, or only in part, the remark names the suspected cause, and an experiment that switched it
off: one number with the cause and without it, and the number that the claim needs. A cause **explains** a difference if
at least 80% of it go with the cause, **part of it** from 20% on; otherwise it is **refuted**. A claim whose suspected
causes are all refuted has an unknown cause. `tradewind reproduce reasons` runs these experiments.

A larger gain than claimed counts as held. Where several experiments judge a claim, it holds if it does in all of them,
and in part if it does at least in part in half of them. Quick runs (`--quick`) give no verdict: *to be run again*, like
results whose stored numbers do not decide it. {OLD} marks a result that is older than the code it judges. Where a paper
contradicts itself or is silent, the notes of the experiment say which reading was built: `tradewind reproduce NAME`
shows them with all numbers, `tradewind reproduce NAME --live` those of a live run.

This page is generated from the JSON files of earlier runs in `docs/benchmarks/data/reproduction`:
`tradewind reproduce --page FILE --out DIR`.
"""


class Cause(StrEnum):
    """What is known of the cause of a difference."""

    EXPLAINED = "explained"
    PARTLY = "explained in part"
    UNKNOWN = "unknown"
    UNTESTED = "not tested"
    NOT_ASKED = "no difference"


_CAUSES = {Finding.EXPLAINS: Cause.EXPLAINED, Finding.PARTLY: Cause.PARTLY, Finding.REFUTED: Cause.UNKNOWN}


class Tested(NamedTuple):
    """A cause that was switched off, and the experiment in which it was."""

    switched: Switched
    outcome: SavedOutcome

    @property
    def finding(self) -> Finding:
        """What it has shown."""
        return self.switched.finding


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
    switched: list[Tested] = field(default_factory=list)

    @property
    def cause(self) -> Cause:
        """What is known of why the claim does not hold; of one that holds, nothing is asked."""
        if self.verdict() in (None, Verdict.HOLDS):
            return Cause.NOT_ASKED
        found = {one.finding for one in self.switched}
        for finding, cause in _CAUSES.items():
            if finding in found:
                return cause
        return Cause.UNTESTED

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
    for name in every_name():
        if name in saved and not saved[name].quick:
            for one in saved[name].switched:
                if one.claim in rows:
                    rows[one.claim].switched.append(Tested(one, saved[name]))
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


def causes_sentence(saved: Mapping[str, SavedOutcome]) -> str:
    """For how many claims that do not hold, or in part, the cause was tested, as one sentence."""
    causes = Counter(row.cause for row in rows_of(saved))
    missed = causes.total() - causes[Cause.NOT_ASKED]
    return (
        f"Of {missed} claims that do not hold, or only in part (our own aims included), a tested cause explains "
        f"{causes[Cause.EXPLAINED]}, and {causes[Cause.PARTLY]} in part; {causes[Cause.UNKNOWN]} have an unknown cause "
        f"(what was suspected is refuted), and {causes[Cause.UNTESTED]} one that was not tested."
    )


def _summary(rows: list[Row], saved: Mapping[str, SavedOutcome]) -> Iterator[str]:
    causes = (Cause.EXPLAINED, Cause.PARTLY, Cause.UNKNOWN, Cause.UNTESTED)
    yield (
        "| paper | claims judged | "
        + " | ".join(Verdict)
        + " | to be run again | not judged | cause "
        + (" | cause ".join(causes) + " |")
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for paper, title in PAPERS.items():
        own = [row for row in rows if row.paper == paper]
        counts, why = _counts(own), Counter(row.cause for row in own)
        cells = [str(counts[verdict]) for verdict in (*Verdict, None)]
        cells += [str(len(UNJUDGED[paper])), *(str(why[cause]) for cause in causes)]
        yield f"| {title} | {counts.total() - counts[None]} | {' | '.join(cells)} |"
    yield ""
    yield f"{counts_sentence(saved)} A claim counts once, with its computed and live experiments together."
    yield ""
    yield causes_sentence(saved)
    yield ""
    current = sum(not (one.is_old or one.quick) for one in saved.values())
    yield f"{current} of {len(saved)} stored results are full runs of the present code."
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
        tested = f"reasons/{paper}"
        yield "Runs: " + "; ".join(_runs([*outcomes, *([saved[tested]] if tested in saved else [])])) + "."
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
    """The reasons, each once, and how the suspected causes were tested."""
    causes = {one.switched.cause for one in row.switched}
    found: list[str] = []
    for one in row.seen:
        text = one.claim.reason
        for cause in causes:
            text = text.replace(cause, "").strip()
        found.append(text)
    for cause, several in groupby(row.switched, lambda one: one.switched.cause):
        found += [cause, *(one.switched.told + (OLD if one.outcome.is_old else "") for one in several)]
    found.append({Cause.UNTESTED: _UNTESTED, Cause.UNKNOWN: _UNKNOWN}.get(row.cause, ""))
    return " ".join(text for text in dict.fromkeys(found) if text)


def _runs(outcomes: list[SavedOutcome]) -> Iterator[str]:
    """How the experiments were run, grouped by number of trials and day."""
    how: dict[str, list[str]] = {}
    for one in outcomes:
        usual = "the usual number of draws" if one.name.endswith(LIVE) else "the published number of trials"
        usual = "a quick run's few trials on a coarse grid" if one.quick else usual
        group, _, figure = one.name.partition("/")
        if group == "reasons":
            usual, figure = "few trials of their own", "causes"
        words = usual if one.trials is None else f"{one.trials} trials"
        words += f" on {one.date}" if one.date else ""
        how.setdefault(words, []).append(figure)
    for words, names in how.items():
        yield f"{', '.join(names)} with {words}" if len(how) > 1 else f"all with {words}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def outdated_claims(saved: Mapping[str, SavedOutcome]) -> list[str]:
    """The saved experiments whose claims differ from the code's, and which must be run again."""
    known = [name for name in saved if name in every_name()]
    return [name for name in known if tuple(claim.text for claim in saved[name].claims) != experiment(name).claims]
