"""Outcomes on disk, which `tradewind reproduce --out DIR` writes for the page of all claims."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tradewind.errors import InputError
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.judged_code import judged_code
from tradewind.experiments.papers.report import Outcome, Switched, Verdict

SUFFIX = ".json"


class SavedClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim with its verdict."""

    text: str
    ours: str
    verdict: Verdict | None
    """None: judged by an earlier rule, and the numbers that were stored do not decide it under the present one."""
    reason: str = ""


class SavedOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment's outcome, and how it was run."""

    name: str
    title: str
    quick: bool
    trials: int | None
    """Number of trials that was requested; None for the experiment's default."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]
    claims: tuple[SavedClaim, ...]
    notes: tuple[str, ...] = ()
    date: str = ""
    """Day of the run, in UTC."""
    code: str = ""
    """Fingerprint of the code that it judges; empty in results from before it was stored."""
    switched: tuple[Switched, ...] = ()
    """Experiments on the causes of differences."""

    @property
    def is_old(self) -> bool:
        """Whether the code that it judges has changed since."""
        return self.code != judged_code(self.name)


def file_name(experiment: str) -> str:
    """The name of the file of an experiment's outcome.

    >>> file_name("mtree/fig6")
    'mtree-fig6.json'
    """
    return experiment.replace("/", "-") + SUFFIX


def to_json(each: Experiment, outcome: Outcome, setting: Setting) -> bytes:
    """The outcome as the content of a JSON file; infinity and NaN become null."""
    saved = SavedOutcome(
        each.name,
        each.title,
        setting.quick,
        setting.trials,
        outcome.columns,
        outcome.rows,
        tuple(SavedClaim(claim.text, claim.ours, claim.verdict, claim.reason) for claim in outcome.claims),
        outcome.notes,
        datetime.now(UTC).strftime("%Y-%m-%d"),
        judged_code(each.name),
        outcome.switched,
    )
    return msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n"


def load(folder: Path) -> dict[str, SavedOutcome]:
    """All outcomes in a folder, by the experiment's name. Raises `InputError` for a file that is not an outcome."""
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=SavedOutcome)
        except (msgspec.MsgspecError, OSError) as error:
            raise InputError(
                f"{path} is not a result of `tradewind reproduce`: {error}. Move it out of the folder."
            ) from error
        found[saved.name] = saved
    return found
