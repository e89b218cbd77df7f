"""Rounds whose first chunks are sent before they start.

A round starts when its last member has requested it and the controller's answer has come back: two ways, in which links
are idle. A training repeats its operations with every step, though, the same buckets in the same order. So where the
last operations of all ranks have repeated with some period, the controller announces the next round of every stream
that is free whenever a round has ended: its number, plan and operation. A rank that requests exactly this operation
sends the first chunks of its array with the request (`node`); others keep them. `Start` then confirms the round.

The controller confirms only what it announced: the same plan, members and weights. If a rank or link was lost, a rank
has joined, the plan has changed, or the operation is another one, the round gets a new number. Chunks with the other
number are never used, so a wrong expectation costs a message and some bytes on links that would have been idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import structs

from tradewind.control.plans.versions import Plans
from tradewind.control.rounds.steps import Round
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE
from tradewind.wire.messages import POLICY_STREAM, Operation

MOST_PERIOD = 128
"""Longest period that is looked for: operations of one training step."""


class Forecast:
    """The operations of all ranks so far, by position; None: one that needs no chunks.

    >>> big, small = (Operation(items, 4, "float32", "mean") for items in (1000, 10))
    >>> seen = Forecast()
    >>> for position in range(4):
    ...     seen.record(position, small if position % 2 else big)
    >>> seen.expected(4) == big, seen.expected(5) == small
    (True, True)
    """

    def __init__(self) -> None:
        self._known: dict[int, Operation | None] = {}
        self._end = 0
        """All positions before it are known, as far as they are remembered."""
        self._period = 1

    def record(self, position: int, operation: Operation | None) -> None:
        """Record the operation at a position; several streams may record theirs in another order."""
        self._known[position] = operation
        self._known.pop(position - 3 * MOST_PERIOD, None)
        while self._end in self._known:
            self._end += 1
        if position - self._end > MOST_PERIOD:  # an operation in between was given up
            self._end = position + 1

    def expected(self, position: int) -> Operation | None:
        """Return the operation to expect at a position; None if the last ones show no period, or none is needed."""
        for period in (self._period, *range(1, MOST_PERIOD + 1)):
            if self._repeats(period):
                self._period = period
                before = position - period * -(-(position - self._end + 1) // period)
                return self._known.get(min(before, position - period))
        return None

    def _repeats(self, period: int) -> bool:
        """Whether the last operations, as many as a period has, equal those of the period before."""
        missing = object()
        last = range(self._end - period, self._end)
        return all(self._known.get(at, missing) == self._known.get(at - period) for at in last)


class Announced:
    """The rounds that were announced and have not started, by stream; only those of operations of all ranks."""

    def __init__(self, plans: Plans, streams: int) -> None:
        """`streams`: the number of streams that operations of all ranks are assigned to in turn."""
        self._plans, self._streams = plans, streams
        self._forecast = Forecast()
        self._begun: Counter[int] = Counter()
        self._next: dict[int, m.Start] = {}

    @property
    def lowest(self) -> int | None:
        """The lowest number of an announced round; None if there is none."""
        return min((start.round for start in self._next.values()), default=None)

    def begun(self, stream: int, operation: Operation | None) -> None:
        """Record that a stream has begun an operation; None: one that needs no chunks."""
        if stream < POLICY_STREAM:
            self._forecast.record(self._streams * self._begun[stream] + stream, operation)
            self._begun[stream] += 1

    def announce(self, ended: Round, start: m.Start, running: Collection[int], number: int) -> list[m.Start]:
        """Return the announcements that the end of a round makes possible, for streams in which no round is running.

        `start` is the `Start` of the round that has ended, `running` are the streams with a round, and `number` is the
        number of the first announced one. What was announced before and still holds is not repeated.
        """
        if ended.stream >= POLICY_STREAM or ended.lost_contributor or start.scattered is not None:
            return []
        assert ended.step.decided is not None
        made: list[m.Start] = []
        positions = {self._streams * self._begun[s] + s: s for s in range(self._streams) if s not in running}
        for position, stream in sorted(positions.items()):
            operation = self._forecast.expected(position)
            if operation is None or operation.codec != NONE:  # encoding changes what error feedback keeps
                continue
            members, nbytes = ended.plan.members, max(1, operation.wire_bytes(len(ended.plan.members)))
            hint = ended.step.decided.plan_hint
            version = self._plans.known_plan_for(members, nbytes, hint, operation.collective)
            said = self._next.get(stream)
            if version is None or (said is not None and (said.version, said.operation) == (version, operation)):
                continue
            # In a tolerant run there is one stream, and ranks that joined later count their requests from there.
            iterations = (self._begun[stream] + 1,) if self._streams > 1 else tuple(i + 1 for i in start.iterations)
            again = structs.replace(start, chunk_items=(), done=(), repaired=False, released=None)
            self._next[stream] = structs.replace(
                again,
                round=number + len(made),
                version=version,
                stream=stream,
                operation=operation,
                iterations=iterations,
            )
            made.append(self._next[stream])
        return made

    def confirmed(self, start: m.Start) -> int | None:
        """Return the number under which a round was announced that starts now; None if it was not."""
        said = self._next.pop(start.stream, None)
        if said is None:
            return None
        any_of = {"floor": said.floor, "whole_digest": said.whole_digest, "releases": said.releases}
        now = structs.replace(start, round=said.round, **any_of)
        return said.round if now == said else None

    def clear(self) -> None:
        """Start no round as announced: chunks may be lost, or ranks have changed."""
        self._next.clear()
