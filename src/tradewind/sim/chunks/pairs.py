"""Data connections between pairs of ranks that break, are cut, and reconnect, on virtual time.

Both ends detect a break, each after its own delay, and then reconnect unless the link is cut; when they have, both
report it, as `runtime.peers` does. A rank that cannot reconnect for too long reports the link as lost, and keeps
trying. A silent cut, of both directions or of one, is detected as late as `runtime.liveness` may detect it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from scipy.sparse.csgraph import connected_components

from tradewind.control.deadlines import Deadlines
from tradewind.network import Network
from tradewind.sim.chunks.links import Connection, Frame
from tradewind.sim.chunks.worker import SimulatedWorker
from tradewind.sim.clock import Clock, Priority

NOTICE_S = 0.1
RETRY_S = 0.1
BUFFER_BYTES = 64 * 1024


@dataclass(eq=False, slots=True)
class Pair:
    """The connections between two ranks, in both directions."""

    ends: tuple[str, str]
    wires: list[Connection] = field(default_factory=list)
    workers: tuple[SimulatedWorker, SimulatedWorker] | None = None
    """The processes that the connections join."""
    cut: bool = False
    refused: bool = False
    """Whether no new connection can be made; existing ones stay."""
    broken_s: float | None = None
    """Since when ranks that were connected are not."""
    reported: bool = False
    trying: bool = False


class Pairs:
    """All pairs of a run."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: np.random.Generator,
        deadlines: Deadlines,
        worker: Callable[[str], SimulatedWorker | None],
        report: Callable[[str, str, bool], None],
    ) -> None:
        self._network, self._clock, self._random, self._deadlines = network, clock, random, deadlines
        self._worker, self._report = worker, report
        self._pairs = {frozenset(ends): Pair(ends) for ends in combinations(network.names, 2)}
        self.changes_noticed = 0
        """Payloads that were changed on the way."""

    def want(self, name: str) -> None:
        """Connect a rank that has a roster to all others."""
        for pair in self._pairs.values():
            if name in pair.ends:
                pair.reported = False
                self._try(pair)

    def hung_up(self, name: str) -> None:
        """Handle a rank that has closed its connections."""
        for pair in self._pairs.values():
            if name in pair.ends and any(wire.cut for wire in pair.wires):
                self._break(pair)

    def killed(self, name: str) -> None:
        """Break the connections of a rank that was killed."""
        for pair in self._pairs.values():
            if name in pair.ends:
                self._break(pair)

    def break_one(self) -> bool:
        """Break the connections of some pair; False if none is connected."""
        up = [pair for pair in self._pairs.values() if pair.wires]
        if up:
            self._break(up[int(self._random.integers(len(up)))])
        return bool(up)

    def cut_one(self, seconds: float, leave_connected: bool = False) -> bool:
        """Cut the link of some pair for a while; `leave_connected`: of one whose ends reach each other through others.

        Returns False if there is none.
        """
        pairs = [pair for pair in self._pairs.values() if not pair.cut]
        if leave_connected:
            pairs = [pair for pair in pairs if self._is_connected_without(pair)]
        if not pairs:
            return False
        pair = pairs[int(self._random.integers(len(pairs)))]
        pair.cut = True
        self._break(pair)
        self._clock.at(self._clock.now_s + seconds, Priority.FAULT, self._heal, pair)
        return True

    def cut_silently(self, ends: tuple[str, str], seconds: float, direction: int | None = None) -> bool:
        """Cut a link, or one of its directions, for a while without a sign; False if it is cut already."""
        pair = self._pairs[frozenset(ends)]
        if pair.cut:
            return False
        pair.cut = True
        self._break(pair, [wire for n, wire in enumerate(pair.wires) if direction is None or n == direction])
        self._clock.at(self._clock.now_s + seconds, Priority.FAULT, self._heal, pair)
        return True

    def swallow(self, ends: tuple[str, str], direction: int, seconds: float) -> bool:
        """Lose the payload in one direction of a link for a while, although it works; False if it has no connection."""
        pair = self._pairs[frozenset(ends)]
        if not pair.wires:
            return False
        wire = pair.wires[direction]
        wire.swallows = True
        self._clock.at(self._clock.now_s + seconds, Priority.FAULT, self._pass_on, wire)
        return True

    def change(self, ends: tuple[str, str], direction: int) -> bool:
        """Change a byte of the next payload in one direction of a link; False if it has no connection.

        The receiver notices it before the payload counts as received, and breaks the connection.
        """
        pair = self._pairs[frozenset(ends)]
        if not pair.wires or pair.workers is None:
            return False
        sender, receiver = pair.workers[direction], pair.workers[1 - direction]

        def noticed() -> None:
            self.changes_noticed += 1
            number = receiver.node.numbers.get(sender.name)
            if number is not None and not receiver.dead:
                receiver.broke(number)
            self._break(pair)

        pair.wires[direction].changed = noticed
        return True

    def lose(self, ends: tuple[str, str], share: float, seconds: float) -> bool:
        """Lose a share of the packets of a link for a while; False if it has no connection."""
        wires = list(self._pairs[frozenset(ends)].wires)
        for wire in wires:
            wire.loss = share
            self._clock.at(self._clock.now_s + seconds, Priority.FAULT, self._lose_nothing, wire)
        return bool(wires)

    @staticmethod
    def _lose_nothing(wire: Connection) -> None:
        wire.loss = 0.0

    def refuse(self, name: str, seconds: float) -> None:
        """Refuse new connections of a rank for a while; those that it has stay."""
        for pair in self._pairs.values():
            if name in pair.ends:
                pair.refused = True
                self._clock.at(self._clock.now_s + seconds, Priority.FAULT, self._accept, pair)

    @staticmethod
    def _accept(pair: Pair) -> None:
        pair.refused = False

    @staticmethod
    def _pass_on(wire: Connection) -> None:
        wire.swallows = False

    def break_link(self, ends: tuple[str, str]) -> bool:
        """Break the connections of a pair; False if it has none."""
        pair = self._pairs[frozenset(ends)]
        was_up = bool(pair.wires)
        self._break(pair)
        return was_up

    def pause(self, name: str, paused: bool) -> None:
        """Stop or continue a rank: its connections stay, and carry nothing meanwhile."""
        for pair in self._pairs.values():
            if name in pair.ends:
                for wire in pair.wires:
                    wire.paused = paused
                    if not paused:
                        wire.resume()
                if not paused:
                    self._try(pair)

    def _is_connected_without(self, cut: Pair) -> bool:
        index = self._network.index
        works = np.zeros((len(index), len(index)))
        for pair in self._pairs.values():
            if not pair.cut and pair is not cut:
                works[index[pair.ends[0]], index[pair.ends[1]]] = 1.0
        parts, _ = connected_components(works, directed=False)
        return bool(parts == 1)

    def heal_all(self) -> None:
        """Restore all links."""
        for pair in self._pairs.values():
            self._heal(pair)

    def _heal(self, pair: Pair) -> None:
        pair.cut = pair.refused = False
        for wire in pair.wires:
            self._pass_on(wire)
            self._lose_nothing(wire)

    def _break(self, pair: Pair, silent: list[Connection] | None = None) -> None:
        """Break the connections of a pair; `silent`: only these carry nothing more, until the ends find out."""
        wires, pair.wires, workers = pair.wires, [], pair.workers
        for wire in wires if silent is None else silent:
            wire.cut = True
        first_s, last_s = 0.0, NOTICE_S
        if silent is not None:
            first_s, last_s = self._deadlines.link_silence_s, self._deadlines.patience_s / 3
        if not wires or workers is None:
            return
        pair.workers = None
        pair.broken_s = self._clock.now_s
        latest_s = self._clock.now_s
        for here, there in (workers, workers[::-1]):
            number = here.node.numbers.get(there.name)
            due_s = self._clock.now_s + first_s + (last_s - first_s) * self._random.random()
            latest_s = max(latest_s, due_s)
            if number is not None and not here.dead:
                reports = None if silent is None else pair
                self._clock.at(due_s, Priority.FAULT, self._noticed, (here, there.name, wires, reports))
        self._clock.at(latest_s + 1e-6, Priority.TIMER, self._try, pair)

    def _noticed(self, what: tuple[SimulatedWorker, str, list[Connection], Pair | None]) -> None:
        """Handle that a rank detects a break; one that detects silence reports the link as lost at once."""
        here, there, wires, silent = what
        number = here.node.numbers.get(there)
        if here.dead or number is None or not any(wire in wires for wire in here.outgoing.get(number, [])):
            return
        here.broke(number)
        if silent is not None:
            silent.reported = True
            self._report(here.name, there, False)

    def _try(self, pair: Pair) -> None:
        """Connect, or report that the link is lost, and try again."""
        a, b = map(self._worker, pair.ends)
        if pair.wires or a is None or b is None or pair.trying:
            return
        knows = b.name in a.node.numbers and a.name in b.node.numbers
        if knows and not pair.cut and not pair.refused and not self._still_noticing(a, b):
            self._connect(pair, a, b)
            return
        late = pair.broken_s is not None and self._clock.now_s - pair.broken_s > self._deadlines.reconnect_s
        if (pair.cut or pair.refused) and pair.broken_s is None:
            pair.broken_s = self._clock.now_s
        if late and knows and not pair.reported:
            pair.reported = True
            for here, there in (pair.ends, pair.ends[::-1]):
                self._report(here, there, False)
        pair.trying = True
        self._clock.at(self._clock.now_s + RETRY_S, Priority.TIMER, self._again, pair)

    def _again(self, pair: Pair) -> None:
        pair.trying = False
        self._try(pair)

    @staticmethod
    def _still_noticing(a: SimulatedWorker, b: SimulatedWorker) -> bool:
        return bool(a.outgoing.get(a.node.numbers[b.name]) or b.outgoing.get(b.node.numbers[a.name]))

    def _connect(self, pair: Pair, a: SimulatedWorker, b: SimulatedWorker) -> None:
        was_broken, pair.broken_s, pair.reported = pair.broken_s is not None, None, False
        pair.workers = (a, b)
        for here, there in ((a, b), (b, a)):
            wire = self._wire(here, there)
            pair.wires.append(wire)
            here.connect(here.node.numbers[there.name], [wire])
        if was_broken:
            for here, there in ((a, b), (b, a)):
                self._report(here.name, there.name, True)

    def _wire(self, here: SimulatedWorker, there: SimulatedWorker) -> Connection:
        i, j = self._network.index[here.name], self._network.index[there.name]

        def arrive(frame: Frame) -> None:
            number = there.node.numbers.get(here.name)
            if not there.dead and number is not None and number in there.outgoing:
                there.frame_came(number, frame)

        return Connection(
            self._clock,
            self._random,
            float(self._network.bandwidth_bps[i, j]),
            float(self._network.latency_s[i, j]),
            0.0,
            1e11,
            BUFFER_BYTES,
            arrive,
        )
