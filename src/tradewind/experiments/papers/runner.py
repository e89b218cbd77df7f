"""Runs of several experiments: which of them are needed, and several at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Outcome
from tradewind.experiments.papers.saved import SavedOutcome
from tradewind.experiments.papers.work import Progress

AT_A_TIME = 3
"""Experiments that run at the same time: enough that the last trials of one leave no process idle, and few enough that
results are stored one after the other from the beginning."""


def needed(chosen: Iterable[Experiment], saved: Mapping[str, SavedOutcome], setting: Setting) -> list[Experiment]:
    """The experiments without a result that is current: of this code, these claims and this number of trials.

    Those that have no full result at all come first.
    """
    found = [each for each in chosen if not _is_current(each, saved.get(each.name), setting)]
    return sorted(found, key=lambda each: each.name in saved and not saved[each.name].quick)


def _is_current(each: Experiment, stored: SavedOutcome | None, setting: Setting) -> bool:
    return (
        stored is not None
        and not stored.is_old
        and (stored.quick, stored.trials) == (setting.quick, setting.trials)
        and tuple(claim.text for claim in stored.claims) == each.claims
    )


def run_each(
    chosen: Sequence[Experiment], setting: Setting, at_a_time: int = 1
) -> Iterator[tuple[Experiment, Outcome | Exception]]:
    """Run all experiments; yields each as it ends, with its outcome or the error that ended it."""
    if at_a_time == 1:
        for each in chosen:
            yield each, _outcome(each, setting)
        return
    threads = ThreadPoolExecutor(at_a_time)
    running = {threads.submit(_outcome, each, setting): each for each in chosen}
    try:
        for ended in as_completed(running):
            yield running[ended], ended.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # those under way end with the executor of their trials


def _outcome(each: Experiment, setting: Setting) -> Outcome | Exception:
    """The outcome, or what the experiment raised: hours of others are not lost with it, and the caller raises it."""
    try:
        return each.outcome(setting)
    except Exception as error:
        return error


class TotalProgress:
    """Adds up the progress of experiments that run at the same time.

    >>> total = TotalProgress(lambda *shown: print(*shown))
    >>> total("a", 1, 4), total("b", 0, 2), total("a", 2, 4)
    reproducing 1 4
    reproducing 1 6
    reproducing 2 6
    (None, None, None)
    """

    def __init__(self, report: Progress) -> None:
        self._report = report
        self._trials: dict[str, tuple[int, int]] = {}

    def __call__(self, label: str, done: int, total: int) -> None:
        """Take the progress of the trials of this label, and report that of all."""
        self._trials[label] = done, total
        every = list(self._trials.values())
        self._report("reproducing", sum(one for one, _ in every), sum(total for _, total in every))
