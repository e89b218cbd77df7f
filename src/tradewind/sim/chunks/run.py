"""Whole chunk-level runs on virtual time: controller, nodes and engines during training, with their invariants.

    run_seed(7)        # one run whose every detail follows from the seed

Every receiver gets identical and correct bytes; no chunk is applied twice; no run stops with unfinished work; kept data
is bounded; inputs are unchanged. All runs are strict, but a link that is cut or whose connections are reset ends none
of them, unless a round that used it overwrote its inputs, or no other route exists. Then every rank gets an error that
names the ends of the link. A violation raises `InternalError`, whose last line is the command that repeats the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.sparse.csgraph import connected_components

from tradewind.arithmetic import Array
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action as ControlAction
from tradewind.control.controller import Disconnect, Send
from tradewind.control.deadlines import Deadlines
from tradewind.errors import ImpossibleProblem, InternalError, PeerLost, TradewindError
from tradewind.network import Network, Site
from tradewind.node.collectives import CollectiveCall
from tradewind.planning import PLANNERS, make_plan
from tradewind.planning.collective import ALL_REDUCE, KINDS, Collective
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.sim.chunks.collectives import expected, own_items
from tradewind.sim.chunks.links import Connection, Frame
from tradewind.sim.chunks.processors import Processors
from tradewind.sim.chunks.worker import SPOILT, SimulatedWorker
from tradewind.sim.clock import Clock, Priority
from tradewind.wire import messages as m
from tradewind.wire.codecs import CODECS, NONE, Codec, codec_of

LONGEST_RUN_S = 1e5
RESET_S = 0.1
"""Connections that are restored within this time were only reset: their ends report no loss before."""


@dataclass(frozen=True)
class ChunkRun:
    """The parameters of one run."""

    network: Network
    planner: str
    seed: int = 0
    items: tuple[int, ...] = (1000,)
    """The number of items of each operation."""
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    """Whether results overwrite their inputs."""
    collective: Collective = ALL_REDUCE
    """What all operations are. `items` are those of each rank's part, if there are parts."""
    connections: int = 1
    """Connections in each direction between two sites."""
    jitter_s: float = 0.0
    buffer_bytes: int = 64 * 1024
    slow_readers: Mapping[str, float] = field(default_factory=dict)
    """Reading rates in bit/s by site."""
    cut: tuple[float, str, str] | None = None
    """The time and the two sites of a cut, which both detect at once."""
    healed_s: float | None = None
    """When these two reconnect; None: never."""
    patience_s: float = 30.0
    inline_bytes: int = 0
    """Arrays of at most this many bytes use inline rounds."""
    codec: str = NONE
    """How chunks are encoded."""
    control_s: float = 0.05
    """Longest delay of a control message."""
    in_turn: bool = False
    """Whether ranks request an operation when the one before has ended; else after a random time, whatever has."""
    send_ahead: bool = True
    host: HostCost = FREE_HOST
    """What frames and bytes cost the processors of ranks; by default nothing. Its connections are `connections`."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The result of a run."""

    seconds: float
    most_kept_bytes: int
    errors: Mapping[str, TradewindError]
    outputs: Mapping[str, tuple[Array, ...]]
    calls: int


class ChunkDriver:
    """Runs one setup."""

    def __init__(self, setup: ChunkRun) -> None:
        self.setup, self.clock = setup, Clock()
        self.random = np.random.default_rng(setup.seed)
        names = setup.network.names
        self.controller = Controller(
            ControlOptions(
                len(names),
                setup.network,
                planner=setup.planner,
                deadlines=Deadlines(setup.patience_s),
                seed=setup.seed,
                send_ahead=setup.send_ahead,
            ),
            0.0,
        )
        self.workers = {name: SimulatedWorker(name, self.clock, self.say, self.random) for name in names}
        for worker in self.workers.values():
            worker.inline_bytes = setup.inline_bytes
            worker.ended = self._taken
        coded = codec_of(setup.codec)
        if coded is None:
            self.inputs = {name: [self._array(self._own_items(items)) for items in setup.items] for name in names}
        else:
            self.inputs = self._exact_arrays(coded)
        self.originals = {name: [a.copy() for a in arrays] for name, arrays in self.inputs.items()}
        self._processors = Processors(setup.network, replace(setup.host, connections=setup.connections))
        self._control_s = dict.fromkeys(names, 0.0)
        self._report_s = dict.fromkeys(names, 0.0)
        self._wires: list[tuple[str, str, Connection]] = []
        self._wakes_s = float("inf")
        self._was_used = False
        """Whether some plan used the cut link when the controller received the report."""

    def _own_items(self, items: int) -> int:
        """The items of each rank's input."""
        if not self.setup.collective.is_parted:
            return items
        return own_items(self.setup.collective.kind, 0, [items] * len(self.setup.network))

    def _array(self, items: int) -> Array:
        """An array of whole numbers, whose sum is exact in any order."""
        return self.random.integers(-8, 8, items).astype(self.setup.dtype)

    def _exact_arrays(self, codec: Codec) -> dict[str, list[Array]]:
        """Arrays whose every partial sum is encoded without loss, and shows which ranks have contributed to it.

        With sparse codecs, in every second run no two ranks have the same positions: then sums grow with every hop.
        """
        if codec.varies and self.setup.seed % 2 and len(self.setup.network) <= codec.exact_stride:
            return self._arrays_apart(codec)
        signs = [self.random.choice([-1.0, 1.0], items) for items in self.setup.items]
        for of in signs:
            of[np.arange(len(of)) % codec.exact_stride > 0] = 0.0
        return {
            name: [(codec.exact * 2.0**rank * of).astype(self.setup.dtype) for of in signs]
            for rank, name in enumerate(self.setup.network.names)
        }

    def _arrays_apart(self, codec: Codec) -> dict[str, list[Array]]:
        """Arrays whose items are at positions that no other rank has."""
        names, stride = self.setup.network.names, codec.exact_stride
        offsets = self.random.permutation(stride)[: len(names)]
        arrays: dict[str, list[Array]] = {name: [] for name in names}
        for items in self.setup.items:
            for name, offset in zip(names, offsets, strict=True):
                array = np.zeros(items)
                array[offset::stride] = codec.exact * self.random.choice([-1.0, 1.0], len(array[offset::stride]))
                arrays[name].append(array.astype(self.setup.dtype))
        return arrays

    # --- control messages: delayed, in order -------------------------------------------------------------------

    def say(self, worker: str, message: m.Message) -> None:
        due = max(self._report_s[worker], self.clock.now_s + self.setup.control_s * self.random.random())
        self._report_s[worker] = due
        self.clock.at(due, Priority.ARRIVAL, self._heard, (worker, message))

    def _heard(self, said: tuple[str, m.Message]) -> None:
        if isinstance(said[1], m.LinkChanged) and self.controller.closed is None:
            ends = frozenset((said[0], said[1].peer))
            self._was_used |= any(ends in plan.pairs for plan in self.controller.plans.by_version.values())
        self.control(self.controller.received(*said, self.clock.now_s))
        self._arm()

    def _arm(self) -> None:
        """Schedule the controller's next timer, in runs with faults."""
        wakes_s = self.controller.wake_at_s
        if self.setup.cut is not None and wakes_s < self._wakes_s:
            self._wakes_s = max(wakes_s, self.clock.now_s)
            self.clock.at(self._wakes_s, Priority.TIMER, self._wake, None)

    def _wake(self, _: None) -> None:
        self._wakes_s = float("inf")
        if any(len(worker.results) < len(self.setup.items) for worker in self.workers.values()):
            for name in self.workers:  # all ranks are alive
                self.controller.received(name, m.Heartbeat(self.clock.now_s), self.clock.now_s)
            self.control(self.controller.tick(self.clock.now_s))
            self._arm()

    def control(self, actions: list[ControlAction]) -> None:
        for action in actions:
            match action:
                case Send(worker, message):
                    due = max(self._control_s[worker], self.clock.now_s + self.setup.control_s * self.random.random())
                    self._control_s[worker] = due
                    self.clock.at(due, Priority.ARRIVAL, self._told, (worker, message))
                case Disconnect():
                    pass

    def _told(self, what: tuple[str, m.Message]) -> None:
        worker, message = what
        self.workers[worker].told(message)
        if isinstance(message, m.Roster):
            self._connect(worker)
            ready_s = self.clock.now_s
            for array in self.inputs[worker][: 1 if self.setup.in_turn else None]:
                ready_s += 0.3 * self.random.random()
                self.clock.at(ready_s, Priority.READY, self._submit, (worker, array))

    def _taken(self, name: str) -> None:
        """An operation has ended: its caller takes the result and uses the array for something else."""
        worker = self.workers[name]
        number, result = next(reversed(worker.results.items()))
        if self._overwrites and isinstance(result, np.ndarray):
            worker.results[number] = result.copy()
            result.fill(SPOILT)
        if self.setup.in_turn and len(worker.results) < len(self.setup.items):
            self.clock.at(
                self.clock.now_s, Priority.READY, self._submit, (name, self.inputs[name][len(worker.results)])
            )

    def _submit(self, what: tuple[str, Array]) -> None:
        name, array = what
        collective, names = self.setup.collective, self.setup.network.names
        if collective == ALL_REDUCE:
            self.workers[name].submit(array, self.setup.op, self.setup.in_place, codec=self.setup.codec)
            return
        root = names.index(collective.root) if collective.is_rooted else 0
        own = array.copy() if collective.kind == "broadcast" else array
        items = [len(array) // len(names)] * len(names)
        if collective.kind in ("all-gather", "gather"):
            items = [len(array)] * len(names)
        gets = expected(collective.kind, [array] * len(names), root, items)[names.index(name)]
        result = own if collective.kind == "broadcast" else np.zeros_like(gets)
        call = CollectiveCall(collective.kind, own, result, names.index(name), root, names, ())
        self.workers[name].collect(call, self.setup.op)

    # --- data connections ----------------------------------------------------------------------------------------

    def _connect(self, name: str) -> None:
        for peer in self.setup.network.names:
            self._connect_to(name, peer)

    def _connect_to(self, name: str, peer: str) -> None:
        """Connect if there is a link in either direction: acknowledgements need the reverse direction."""
        network = self.setup.network
        i, j = network.index[name], network.index[peer]
        rate = float(network.bandwidth_bps[i, j] or network.bandwidth_bps[j, i])
        if rate:
            made = [self._connection(name, peer, rate) for _ in range(self.setup.connections)]
            self._wires += [(name, peer, connection) for connection in made]
            self.workers[name].connect(j, made)
            if i < j:
                self.say(name, m.Linked(peer))

    def _connection(self, name: str, peer: str, rate_bps: float) -> Connection:
        setup = self.setup
        i, j = setup.network.index[name], setup.network.index[peer]
        latency_s = float(setup.network.latency_s[i, j] or setup.network.latency_s[j, i])
        read_bps = setup.slow_readers.get(peer, 1e11)
        receiver, wire = self.workers[peer], object()

        def arrive(frame: Frame) -> None:
            if receiver.engine is None:  # the roster is in transit: the frame waits in the socket
                self.clock.at(self.clock.now_s + 0.01, Priority.ARRIVAL, arrive, frame)
            else:
                receiver.frame_came(i, frame, wire)

        return Connection(
            self.clock,
            self.random,
            rate_bps / setup.connections,
            latency_s,
            setup.jitter_s,
            read_bps,
            setup.buffer_bytes,
            arrive,
            sends_s=partial(self._processors.handled_s, i),
            reads_s=partial(self._processors.handled_s, j),
        )

    def _cut(self, ends: tuple[str, str]) -> None:
        for src, dst, connection in self._wires:
            if {src, dst} == set(ends):
                connection.cut = True
        is_reset = self.setup.healed_s is not None and self.setup.healed_s < self.clock.now_s + RESET_S
        for here, there in (ends, ends[::-1]):
            self.workers[here].broke(self.setup.network.index[there])
            if not is_reset:
                self.say(here, m.LinkChanged(there, "the connection was cut"))

    def _heal(self, ends: tuple[str, str]) -> None:
        for here, there in (ends, ends[::-1]):
            self._connect_to(here, there)
            self.say(here, m.LinkChanged(there, "its connection was restored", back=True))

    # --- the whole ---------------------------------------------------------------------------------------------

    def run(self) -> ChunkResult:
        for rank, name in enumerate(self.workers):
            self.control(self.controller.connected(name, 0.0))
            self.say(name, m.Join("virtual", 1, rank))
        if self.setup.cut is not None:
            at_s, *ends = self.setup.cut
            self.clock.at(at_s, Priority.FAULT, self._cut, (ends[0], ends[1]))
            if self.setup.healed_s is not None:
                self.clock.at(self.setup.healed_s, Priority.FAULT, self._heal, (ends[0], ends[1]))
        self.clock.run(LONGEST_RUN_S)
        self._check_all_ended()
        errors = {
            name: next(r for r in worker.results.values() if isinstance(r, TradewindError))
            for name, worker in self.workers.items()
            if any(isinstance(r, TradewindError) for r in worker.results.values())
        }
        self._check_results(errors)
        return ChunkResult(
            max(s for w in self.workers.values() for s in w.ended_s.values()),
            max(w.most_kept_bytes for w in self.workers.values()),
            errors,
            {n: tuple(r for r in w.results.values() if isinstance(r, np.ndarray)) for n, w in self.workers.items()},
            self.clock.calls,
        )

    def _check_all_ended(self) -> None:
        stuck = [w.story() for w in self.workers.values() if len(w.results) < len(self.setup.items)]
        if stuck:
            raise InternalError(f"deadlock: {stuck}")
        left = {n: w.engine.kept_bytes for n, w in self.workers.items() if w.engine and w.engine.kept_bytes}
        if left and self.setup.cut is None:
            raise InternalError(f"buffers are left at the end: {left}")

    def _expected(self, number: int) -> dict[str, Array]:
        collective, names = self.setup.collective, self.setup.network.names
        inputs = [self.originals[name][number].astype(np.float64) for name in names]
        root = names.index(collective.root) if collective.is_rooted else 0
        sizes = [self.setup.items[number]] * len(names)
        return dict(zip(names, expected(collective.kind, inputs, root, sizes), strict=True))

    def _check_results(self, errors: Mapping[str, TradewindError]) -> None:
        for name, arrays in ({} if self.setup.in_place else self.inputs).items():
            if not all(np.array_equal(a, b) for a, b in zip(arrays, self.originals[name], strict=True)):
                raise InternalError(f"an input of {name} has changed.")
        for number in range(len(self.setup.items)):
            got = {n: w.results[number] for n, w in self.workers.items()}
            good = {n: r for n, r in got.items() if isinstance(r, np.ndarray)}
            truth = self._expected(number)
            for name, result in good.items():
                if not np.array_equal(self.workers[name].shown(number, result).astype(np.float64), truth[name]):
                    raise InternalError(f"operation {number}: {name} has a wrong result.")
        if errors and self.setup.cut is None:
            raise InternalError(f"operations failed although no link was cut: {errors}")
        for name, error in errors.items():
            if not (isinstance(error, PeerLost) and all(repr(end) in str(error) for end in (self.setup.cut or ())[1:])):
                raise InternalError(f"{name} got {error!r}, which does not name both ends of the cut.")
            if not (self._is_only_way or (self._was_used and self._overwrites)):
                raise InternalError(f"{name} got {error!r}, but the run could have continued without that link.")

    @property
    def _overwrites(self) -> bool:
        """Whether data that is lost during a round cannot be sent again."""
        return self.setup.in_place and self.setup.collective == ALL_REDUCE

    @property
    def _is_only_way(self) -> bool:
        """Whether some site cannot reach another without the link that was cut."""
        assert self.setup.cut is not None
        network = self.setup.network
        i, j = (network.index[end] for end in self.setup.cut[1:])
        links = network.bandwidth_bps.copy()
        links[i, j] = links[j, i] = 0.0
        parts, _ = connected_components(links, connection="strong")
        return bool(parts > 1)


def run_chunks(setup: ChunkRun) -> ChunkResult:
    """Run a setup, and check the result."""
    return ChunkDriver(setup).run()


def setup_of(seed: int) -> ChunkRun:
    """A run whose every parameter is drawn from a seed."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 7))
    names = [f"s{i}" for i in range(n)]
    rate = random.choice([1e6, 1e7, 1e8, 1e9], (n, n)) * (1 - np.eye(n))
    missing = random.random((n, n)) < random.choice([0.0, 0.4])
    ring = np.zeros((n, n), dtype=bool)
    for i in range(n):
        ring[i, (i + 1) % n] = ring[(i + 1) % n, i] = True
    rate = np.where(missing & ~ring, 0.0, rate)
    network = Network("seed", [Site(name) for name in names], rate, random.choice([0, 1e-3, 0.1], (n, n)))
    choices = [name for name in PLANNERS.built_in if name != "auto"]
    items = tuple(int(random.choice([1, 3, 100, 5000, 100_000])) for _ in range(int(random.integers(1, 12))))
    linked = [(a, b) for a in names for b in names if rate[names.index(a), names.index(b)]]
    cut = None
    if random.random() < 0.3:
        src, dst = linked[int(random.integers(len(linked)))]
        cut = (0.2 + float(random.random() * 3), src, dst)  # after all ranks have joined
    setup = ChunkRun(
        network,
        choices[int(random.integers(len(choices)))],
        seed,
        items,
        dtype=str(random.choice(["float32", "float64", "float16", "int32", "int64"])),
        connections=int(random.integers(1, 4)),
        jitter_s=float(random.choice([0.0, 0.01, 0.5])),
        buffer_bytes=int(random.choice([1024, 64 * 1024, 2**22])),
        slow_readers={names[0]: 1e6} if random.random() < 0.3 else {},
        cut=cut,
        in_place=bool(random.random() < 0.4),
        collective=Collective.parse(str(random.choice(KINDS[1:])), names[-1]) if random.random() < 0.4 else ALL_REDUCE,
        inline_bytes=int(random.choice([0, 1000, 64 * 1024])),
    )
    if cut is None:
        return setup
    healed_s = random.choice([np.inf, cut[0] + RESET_S / 2, cut[0] + 2 * random.random()])
    return replace(setup, healed_s=float(healed_s) if np.isfinite(healed_s) else None)


def in_place_setup_of(seed: int) -> ChunkRun:
    """A run whose operations repeat in place, so that they are sent ahead and their results used before `Commit`.

    In most runs a link is cut, and comes back or does not: a round that uses it then ends the run.
    """
    random = np.random.default_rng([seed, 39])
    n, ranks = int(random.integers(2, 5)), int(random.integers(1, 3))
    apart = 1 - np.eye(n)
    latency_s = float(random.choice([0.0, 0.02, 0.1])) * apart
    sites = [Site(f"s{i}", ranks=ranks) for i in range(n)]
    network = Network("in place", sites, float(random.choice([2e6, 5e7])) * apart, latency_s).with_ranks()
    step = [int(random.integers(100, 40_000)) for _ in range(int(random.integers(1, 4)))]
    setup = ChunkRun(
        network,
        str(random.choice(["optimal", "ring", "star", "multi-star"])),
        seed,
        tuple(step * (24 // len(step))),
        in_place=True,
        connections=int(random.integers(1, 3)),
        jitter_s=float(random.choice([0.0, 0.05])),
        control_s=float(random.choice([0.02, 0.2, 0.5])),
        in_turn=bool(random.random() < 0.8),
    )
    if random.random() < 0.25:
        return setup
    at_s, ends = float(random.uniform(1, 6)), random.permutation(network.names)[:2]
    back_s = float(random.choice([0.01, 0.5, np.inf]))
    cut = at_s, str(ends[0]), str(ends[1])
    return replace(setup, cut=cut, healed_s=at_s + back_s if np.isfinite(back_s) else None)


def coded_setup_of(seed: int) -> ChunkRun:
    """An encoded run whose every parameter is drawn from a seed."""
    random = np.random.default_rng([seed, 1])
    codec, dtype = str(random.choice(CODECS[1:])), str(random.choice(["float32", "float64"]))
    setup = setup_of(seed)
    planner = "multi-star" if setup.planner == "all-to-all" else setup.planner  # codecs need a root for each shard
    return replace(setup, planner=planner, codec=codec, dtype=dtype, collective=ALL_REDUCE, inline_bytes=0)


def run_in_place(seed: int) -> ChunkResult:
    """Run operations in place, with parameters drawn from a seed."""
    try:
        return run_chunks(in_place_setup_of(seed))
    except Exception as error:
        replay = f"python -c 'from tradewind.sim.chunks.run import run_in_place; run_in_place({seed})'"
        raise InternalError(f"{type(error).__name__}: {error}\nreplay: {replay}") from error


def run_seed(seed: int, coded: bool = False) -> ChunkResult | None:
    """Run with parameters drawn from a seed; None where the drawn planner has no plan."""
    setup = coded_setup_of(seed) if coded else setup_of(seed)
    try:
        make_plan(setup.planner, setup.network, 1)
        return run_chunks(setup)
    except ImpossibleProblem:
        return None
    except Exception as error:
        replay = f"python -c 'from tradewind.sim.chunks.run import run_seed; run_seed({seed}, coded={coded})'"
        raise InternalError(f"{type(error).__name__}: {error}\nreplay: {replay}") from error
