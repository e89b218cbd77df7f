"""NetStorm's systems on virtual time, chunk by chunk: the turns of `live`, without the processes.

The production controller, nodes and engines run on virtual links with the paper's latency: chunks are measured on
arrival, plans follow the measurements, and auxiliary queues take chunks. So measuring, replanning and queues are those
of a live run, but neither frames nor planning take processor time, links lose nothing, and no other program interferes.
Rates, sizes and times are compressed as in `live`. `Links` adds what else differs, one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tradewind.arithmetic import Array
from tradewind.control import Controller, ControlOptions
from tradewind.control.deadlines import Deadlines
from tradewind.errors import InternalError
from tradewind.experiments.papers.netstorm.live import (
    COMPRESSION,
    LATENCY_S,
    PARTS_UNDER_WAY,
    RATE_SCALE,
    Played,
    Turn,
)
from tradewind.experiments.papers.netstorm.simulated import COMPUTE_S
from tradewind.network import Network
from tradewind.sim.chunks.changing import ChangingDriver, ChangingRun
from tradewind.sim.chunks.links import Connection
from tradewind.sim.chunks.run import LONGEST_RUN_S, ChunkRun
from tradewind.sim.clock import Priority
from tradewind.wire import messages as m

PLANNING_S = 0.02
UNSENT_BYTES = 128 * 1024
"""Bytes that a connection holds, as a socket does."""
SOCKET_BYTES = 16 * 1024
"""Bytes that a live run's socket on a slow link takes before the link has sent them (`runtime.connections`)."""
PACKET_BYTES = 1448
"""Payload of a TCP packet."""


@dataclass(frozen=True, slots=True)
class Links:
    """How the virtual links of a turn differ from plain ones."""

    latency_s: float = LATENCY_S
    loss: float = 0.0
    """The share of packets that get lost. A frame with a lost packet comes 200 ms later, TCP's least timeout."""
    most_bps: float = math.inf
    """What a connection carries at most, whatever its link does."""
    buffered: bool = False
    """Whether a chunk has left its queue when its rest is in the socket's buffer, as in a live run, not when it was
    sent."""

    def of(self, network: Network) -> Network:
        """The network with this latency on all links, and no more than a connection carries."""
        rates_bps = np.minimum(network.bandwidth_bps, self.most_bps)
        return Network(network.name, network.sites, rates_bps, np.where(rates_bps > 0, self.latency_s, 0.0))


PLAIN = Links()


class BufferedConnection(Connection):
    """A connection whose frames have left when no more of them than a socket holds is unsent."""

    def _pump(self) -> None:
        began = not self._busy
        super()._pump()
        if began and self._busy:
            frame, left = self._sending[0]
            self._sending[0] = frame, _nothing
            left_s = self.clock.now_s + 8.0 * max(0, frame.nbytes - SOCKET_BYTES) / self.rate_bps
            self.clock.at(left_s, Priority.ARRIVAL, _call, left)


def _nothing() -> None:
    """Of a frame that has left before it was sent."""


def _call(left: Callable[[], None]) -> None:
    left()


class TurnDriver(ChangingDriver):
    """One system on one network for a time: rounds of a model in parts, with a pause for computing after each."""

    def __init__(self, turn: Turn, links: Links = PLAIN) -> None:
        known = links.of(turn.known)
        run = ChunkRun(known, turn.system.planner, turn.trial, (), buffer_bytes=UNSENT_BYTES)
        super().__init__(
            ChangingRun(run, turn.system.awareness, control_s=links.latency_s, planning_s=PLANNING_S, skew_s=1.0)
        )
        self.turn, self.links = turn, links
        self.controller = Controller(
            ControlOptions(
                len(known),
                known,
                planner=turn.system.planner,
                planner_options=turn.system.planner_options,
                deadlines=Deadlines(run.patience_s),
                seed=turn.trial,
                awareness=turn.system.awareness,
                chunk_bytes=turn.system.chunk_bytes,
                send_ahead=turn.system.transport.send_ahead,
            ),
            0.0,
        )
        names = known.names
        model = np.ones(turn.nbytes // 4, np.float32)
        self._parts = {name: np.array_split(model.copy(), turn.parts) for name in names}
        self._waiting: dict[str, deque[Array]] = {name: deque() for name in names}
        self._under_way = dict.fromkeys(names, 0)
        self._round = dict.fromkeys(names, -1)
        """The number of each rank's round; -1: the first, which opens connections and does not count."""
        self.began_s = 0.0
        self.ends_s: list[float] = []
        self._last_round: int | None = None
        for worker in self.workers.values():
            worker.ended = self._part_ended

    @property
    def _all_ended(self) -> bool:
        last = self._last_round
        return last is not None and min(self._round.values()) >= last

    def _told(self, what: tuple[str, m.Message]) -> None:
        """Handle a message of the controller; a rank that has joined begins its first round."""
        name, message = what
        self.workers[name].told(message)
        if isinstance(message, m.Roster) and not self._under_way[name] and self._round[name] < 0:
            self._connect(name)
            self._begin(name)

    def _begin(self, name: str) -> None:
        """Submit the first parts of a rank's next round."""
        self._waiting[name].extend(self._parts[name])
        for _ in range(PARTS_UNDER_WAY):
            self._next_part(name)

    def _next_part(self, name: str) -> None:
        if self._waiting[name]:
            self._under_way[name] += 1
            self.workers[name].submit(self._waiting[name].popleft(), "sum")

    def _part_ended(self, name: str) -> None:
        self._under_way[name] -= 1
        self._next_part(name)
        if self._under_way[name] == 0:
            pause_s = COMPUTE_S / COMPRESSION
            self.clock.at(self.clock.now_s + pause_s, Priority.READY, self._round_ended, name)

    def _round_ended(self, name: str) -> None:
        """End a rank's round; the first rank decides, as in a live turn, which round is the last."""
        now_s = self.clock.now_s
        self._round[name] += 1
        if name == next(iter(self.workers)):
            if self._round[name] == 0:
                self._start()
            else:
                self.ends_s.append(now_s - self.began_s)
                if self._last_round is None and self.ends_s[-1] * (1 + 0.5 / len(self.ends_s)) >= self.turn.seconds:
                    self._last_round = self._round[name] + 1  # others may have begun it
        if self._last_round is None or self._round[name] < self._last_round:
            self._begin(name)

    def _start(self) -> None:
        """Begin the turn: from now on rates change, and rounds count."""
        self.began_s = self.clock.now_s
        if (rates := self.turn.rates) is not None:
            for at_s in rates.start_s:
                drawn = rates.network_at(float(at_s))
                scaled = self.links.of(Network(drawn.name, drawn.sites, drawn.bandwidth_bps * RATE_SCALE))
                if at_s / COMPRESSION <= 10 * self.turn.seconds:
                    self.clock.at(self.began_s + float(at_s) / COMPRESSION, Priority.FAULT, self._change, scaled)

    def _connection(self, name: str, peer: str, rate_bps: float) -> Connection:
        made = super()._connection(name, peer, rate_bps)
        if self.links.buffered:
            made = BufferedConnection(
                self.clock,
                self.random,
                made.rate_bps,
                made.latency_s,
                made.jitter_s,
                made.read_bps,
                made.buffer_bytes,
                made.arrive,
            )
        made.loss = 1 - (1 - self.links.loss) ** math.ceil(self.turn.system.chunk_bytes / PACKET_BYTES)
        return made

    def play(self) -> Played:
        """Run the turn."""
        for name in self.workers:
            self.clock.at(0.0, Priority.ARRIVAL, self._beat, name)
        for rank, name in enumerate(self.workers):
            self.control(self.controller.connected(name, 0.0))
            self.say(name, m.Join("virtual", 1, rank))
        self.clock.run(LONGEST_RUN_S)
        if not self._all_ended:
            raise InternalError(f"a turn of {self.turn.system} stopped after {len(self.ends_s)} rounds.")
        self._check_sums()
        return Played(tuple(self.ends_s), 1.0)

    def _check_sums(self) -> None:
        for name, worker in self.workers.items():
            for number, result in worker.results.items():
                if not isinstance(result, np.ndarray) or not (result == len(self.workers)).all():
                    raise InternalError(f"{name} has a wrong sum in operation {number}: {result}.")

    @property
    def detoured(self) -> int:
        """Number of chunks that took an auxiliary path."""
        return sum(worker.detoured for worker in self.measuring.values())


def play_virtual(turn: Turn, links: Links = PLAIN) -> Played:
    """Run one turn on virtual time."""
    return TurnDriver(turn, links).play()
