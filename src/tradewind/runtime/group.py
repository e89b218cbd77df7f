"""`tradewind.connect(...)`: a group of processes that all-reduce arrays.

    with tradewind.connect("10.0.0.1:4000", rank=0, world=4, secret="...") as group:
        total = group.all_reduce(gradients, op="mean")

Every process of the group must ask for the same operations in the same order. An operation either succeeds on every
member, or raises and leaves every input as it was, unless the result was to be put over it (`out=array`).
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from tradewind.arithmetic import Array, check_operation, name_dtype
from tradewind.control.network.view import FAST_BPS
from tradewind.errors import BadArray, BadOption, PeerLost, TradewindError
from tradewind.network import Network
from tradewind.node.actions import Outcome
from tradewind.node.measuring import MeasuringOptions
from tradewind.runtime import state_transfer
from tradewind.runtime.addresses import (
    HostPort,
    choose_addresses,
    is_on_this_host,
    listen_for_neighbours,
    listen_on,
)
from tradewind.runtime.arrays import as_array, check_out, check_storage
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.options import (
    MAX_CONNECTIONS,
    RunFields,
    RunOptions,
    choose_options,
    load_network,
    resolve_options,
)
from tradewind.runtime.peers import Connected
from tradewind.runtime.probe import SeenNetwork
from tradewind.runtime.report import set_log_level
from tradewind.runtime.shape_alone import shape_from_environment
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.runtime.stats import GroupStats
from tradewind.runtime.tracing import RankTrace, TraceWriter
from tradewind.runtime.worker import Worker
from tradewind.wire.handshake import MIN_SECRET_BYTES, SECRET_VARIABLE, Credentials
from tradewind.wire.messages import Operation

log = logging.getLogger("tradewind.runtime")

STREAM_BYTES = 4 * 2**20
"""What one TCP connection keeps under way with usual buffers; more bandwidth x delay needs more connections."""
LONGEST_REASON = 1000
"""Letters of an error that others are told."""
ASK_AGAIN_S = 0.5
"""While others are waited for."""


class Handle:
    """An operation that is under way."""

    def __init__(self, result: Array) -> None:
        self._result, self._owner = result, OwnerProcess()
        self._done = threading.Event()
        self._how: TradewindError | Outcome | None = None
        self._lock = threading.Lock()
        self._calls: list[Callable[[TradewindError | None], None]] = []

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> Array:
        """The result, when it is there. Raises what went wrong, and TimeoutError if it is not over in time."""
        if not self.done:
            self._owner.check("an operation that is under way")
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the operation is not over after {timeout_s} s.")
        if isinstance(self._how, TradewindError):
            raise self._how.fresh()
        return self._result

    @property
    def outcome(self) -> Outcome:
        """Who took part and how long it took, when it is over. Raises as `wait` does."""
        self.wait()
        assert isinstance(self._how, Outcome)
        return self._how

    def when_done(self, call: Callable[[TradewindError | None], None]) -> None:
        """Have `call` called with the error, or None, when it ends. It holds up a thread that moves bytes: be quick.

        What it raises is logged and changes nothing for the operation or the run.
        """
        with self._lock:
            if not self.done:
                self._calls.append(call)
                return
        self._tell(call)

    def _end(self, how: TradewindError | Outcome) -> None:
        with self._lock:
            self._how = how
            self._done.set()
        for call in self._calls:
            self._tell(call)

    def _tell(self, call: Callable[[TradewindError | None], None]) -> None:
        try:
            call(self._how if isinstance(self._how, TradewindError) else None)
        except Exception:
            log.exception("a callback of an operation that has ended raised an error; the run goes on")


class Group:
    """The processes of a run, from one of them. Made by `connect`."""

    def __init__(self, worker: Worker, server: ControlServer | None, rank: int) -> None:
        self._worker, self._server, self._owner = worker, server, OwnerProcess()
        self.rank = rank
        self.name = worker.site

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who is there: by rank, then whoever joined later."""
        return self._worker.roster

    @property
    def world(self) -> int:
        """How many are there."""
        return len(self._worker.roster)

    def all_reduce(
        self, array: ArrayLike, op: str = "sum", *, out: Array | None = None, dtype: str | None = None
    ) -> Array:
        """The sum (mean, min, max, product) of everybody's arrays, in `out` or a new array; `array` stays as it is.

        `array` is a numpy array or what numpy makes one of without loss: a list of numbers, a tensor on the CPU. The
        result is always a numpy array. What has no sum, such as masked arrays, objects and text, is refused.

        `out=array` puts the result over the input and needs no second array; if the operation is lost, what the array
        holds then is undefined. `dtype="bfloat16"` takes 16-bit patterns (`uint16`) as such.
        """
        return self.all_reduce_async(array, op, out=out, dtype=dtype).wait()

    def all_reduce_async(
        self, array: ArrayLike, op: str = "sum", *, out: Array | None = None, dtype: str | None = None
    ) -> Handle:
        """The same without waiting. The array must not change, and `out` not be used, before the handle is done."""
        return self._combine(array, op, out, dtype)

    def average(self, array: ArrayLike, *, out: Array | None = None, dtype: str | None = None) -> Array:
        """The weighted mean with whoever the run's policy puts this process together with; everybody under `bsp`.

        Unlike the other operations it need not be asked for as often by everybody.
        """
        return self.average_async(array, out=out, dtype=dtype).wait()

    def average_async(
        self, array: ArrayLike, *, out: Array | None = None, dtype: str | None = None, part: int = 0, parts: int = 1
    ) -> Handle:
        """The same without waiting, and in parts where the whole is not there at once.

        All parts of a step run with the same members, whom the policy chooses when they have part 0. Every part is
        given once, in any order, before the next step's.
        """
        return self._combine(array, "mean", out, dtype, part, parts)

    def _combine(
        self,
        array: ArrayLike,
        op: str,
        out: Array | None,
        dtype: str | None,
        part: int | None = None,
        parts: int = 1,
    ) -> Handle:
        array = as_array(array)
        name = dtype or name_dtype(array)
        check_operation(op, name)
        check_storage(array, name)
        own = np.ascontiguousarray(array).reshape(array.shape)  # which alone would give a scalar a dimension
        if out is not None:
            check_out(out, array, own)
        result = np.empty(own.shape, own.dtype) if out is None else out
        return self._submit(Operation(own.size, own.itemsize, name, op, parts=parts), own, result, part)

    def broadcast(self, array: ArrayLike, root: int = 0) -> Array:
        """The root's array, of any type and exact to the bit, as a new one on every member.

        Others give an array of the same size and type, which stays as it is.
        """
        if not 0 <= root < self.world:
            raise BadOption(f"root is {root}, but ranks go from 0 to {self.world - 1}.")
        array = as_array(array)
        if array.dtype.hasobject:
            raise BadArray("an array of Python objects cannot be broadcast. Convert it to numbers or bytes.")
        result = np.array(array, order="C") if self.rank == root else np.empty(array.shape, array.dtype)
        raw = result.reshape(-1).view(np.uint8)
        order = "" if array.dtype.isnative else " in foreign byte order"
        what = f"bytes ({array.size} of {array.dtype.name}{order})"
        self._submit(Operation(raw.size, 1, what, "broadcast", root=self.names[root]), raw, raw).wait()
        return result

    def barrier(self) -> None:
        """Wait until everybody is here."""
        one = np.ones(1, np.int32)
        self._submit(Operation(1, 4, "int32", "sum", root="barrier"), one, np.empty_like(one)).wait()

    def _submit(self, operation: Operation, own: Array, result: Array, part: int | None = None) -> Handle:
        self._owner.check(f"group {self.name!r}")
        handle = Handle(result)
        writable = result.view()  # and stays so, whatever becomes of the caller's flags
        self._worker.submit(operation, own, writable, handle._end, part)
        return handle

    @property
    def tolerant(self) -> bool:
        """Whether the run goes on without those who are lost, and others may join."""
        return self._worker.tolerant

    def offer_state(self, offer: state_transfer.Offer | None) -> None:
        """Have `offer` called, in another thread, for the current model whenever a rank that joins asks for it.

        If it raises, that is logged, and the rank that asked is told that nothing is offered here.
        """
        self._owner.check(f"group {self.name!r}")
        self._worker.offer = offer

    def fetch_state(self) -> tuple[str, bytearray] | None:
        """The current model of some member that offers one, and its name; None if nobody does. For who joins later."""
        self._owner.check(f"group {self.name!r}")
        worker = self._worker
        limits_s = worker.deadlines.handshake_s, worker.deadlines.silence_s
        return state_transfer.ask(worker.addresses, worker.credentials, *limits_s)

    def stats(self) -> GroupStats:
        """What this process has done so far and sees now: rounds, bytes, peers, plans, memory (docs/runtime.md).

        Any thread may ask, at any time, also when the group is closed. It takes about as long as a control message.
        """
        self._owner.check(f"group {self.name!r}")
        return self._worker.stats(self.rank, None if self._server is None else self._server.stats())

    @property
    def controller(self) -> ControlServer | None:
        """The controller, if this process runs one: a seam for tests and benchmarks (`ControlServer.change`)."""
        return self._server

    def network(self) -> SeenNetwork:
        """What is known of the network now: what was given, or measured by what this run has sent."""
        self._owner.check(f"group {self.name!r}")
        return SeenNetwork.from_message(self._worker.network_seen())

    def close(self) -> None:
        """Leave the group; operations under way fail. In a forked child it does nothing: the run is its parent's."""
        if not self._owner.is_here:
            return
        self._worker.close()
        if self._server is not None:
            self._server.close(f"{self.name!r}, which runs the controller, has left the run")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connections_needed(bandwidth_bps: float, latency_s: float) -> int:
    """How many TCP connections keep a link full.

    >>> connections_needed(100e6, 0.1), connections_needed(1e9, 0.1), connections_needed(10e9, 0.0)
    (1, 6, 1)
    """
    under_way = bandwidth_bps / 8 * 2 * latency_s
    return max(1, min(MAX_CONNECTIONS, math.ceil(under_way / STREAM_BYTES)))


@dataclass(frozen=True, slots=True)
class Hooks:
    """What callers inside Tradewind (lab, PyTorch backend, tests) add to `connect`."""

    shape: ShapedNetwork | None = None
    """Make data connections behave like this network's links. Default: the file that TRADEWIND_SHAPE names, if set."""
    listening: Callable[[str], None] | None = None
    """Called with the controller's address, where it runs, before any other rank is needed."""
    abandoned: Callable[[], str | None] | None = None
    """Asked, while other ranks are waited for, for a reason to stop."""
    connected: Connected | None = None
    """Called with a peer's name and the socket when a data connection to it is made, before anything is sent."""


def connect(
    address: str | Sequence[str] | None,
    rank: int,
    world: int,
    options: RunOptions | None = None,
    *,
    secret: str | bytes | None = None,
    run: str = "tradewind",
    hooks: Hooks | None = None,
    **fields: Unpack[RunFields],
) -> Group:
    """Join a run of `world` processes; returns when all have joined.

    `address` is where the controller listens: rank 0 runs it there. With several addresses the first controller acts
    and the others stand by (docs/guides/elastic.md), rank 1 running the second, and so on; such a run is tolerant.
    Where `controller` is set, by argument, environment or file, `tradewind controller` runs it there and `address` may
    be None. The secret comes from the argument or the environment variable TRADEWIND_SECRET.

    Everything else is an option of the run (docs/reference/options.md), as `options=RunOptions(planner="ring")` or as
    keywords (`planner="ring"`), which mean the same. What is not given comes from TRADEWIND_* variables, then
    `tradewind.toml`.
    """
    if not 0 <= rank < world:
        raise BadOption(f"rank must be in [0, {world}), got {rank}.")
    chosen, _ = resolve_options(choose_options(options, fields))
    hooks = hooks or Hooks()
    if "log" in chosen.given:
        set_log_level(chosen.log)
    network = load_network(chosen.network)
    chosen = chosen.replaced(network=network)
    shape = hooks.shape or shape_from_environment()
    name = _name(rank, world, chosen.site, network, shape)
    addresses = [HostPort.parse(place) for place in _places(address, chosen)]
    credentials = Credentials(run, name, find_secret(secret))
    aware, transport = chosen.awareness, chosen.transport
    how = MeasuringOptions(aware.estimator, aware.min_chunk_bytes, aware.probe_chunks, aware.report_s)
    bound, advertised = choose_addresses(transport.bind, transport.interface, transport.advertise)
    server = None
    if rank < len(addresses) and not chosen.controllers:
        server = _serve(addresses[rank], credentials, chosen, world, len(addresses), rank)
        addresses[rank] = HostPort(addresses[rank].host, server.port)
    near = transport.local_sockets and shape is None
    counts = _connections(name, network, transport.connections)
    measuring = how if aware.measure else None
    about = _is_slow(network), shape, measuring, near, hooks.connected
    worker = Worker(credentials, chosen.tolerance.deadlines, counts, *about)
    worker.inline_bytes = transport.inline_bytes if shape is None else 0  # messages are not slowed down there
    try:
        if chosen.trace is not None:
            worker.trace = RankTrace(TraceWriter(Path(chosen.trace), name, worker.compare_clocks))
        if server is not None and hooks.listening is not None:
            hooks.listening(str(addresses[rank]))
        allowed = transport.port_range
        controllers = {place.port for place in addresses if allowed and is_on_this_host(place.host)}
        socks = [listen_on(bound, 0, allowed, reserved=controllers)]
        if near and (beside := listen_for_neighbours(run, name, socks[0])) is not None:
            socks.append(beside)
        worker.start(addresses, socks, advertised, rank)
        _wait_for_others(worker, world, hooks.abandoned)
        if worker.lost is not None:
            raise worker.lost.fresh()
    except BaseException as error:
        worker.close(PeerLost(f"{name!r} could not join."))
        if server is not None:
            server.close(f"{name!r}, which runs the controller, could not join ({str(error)[:LONGEST_REASON]})")
        raise
    return Group(worker, server, rank)


def _places(address: str | Sequence[str] | None, options: RunOptions) -> Sequence[str]:
    """Where the controllers are."""
    if options.controllers:
        return options.controllers
    if address is None:
        raise BadOption("address is None: give HOST:PORT where rank 0 runs the controller, or set controller=.")
    return [address] if isinstance(address, str) else address


def _serve(
    where: HostPort, own: Credentials, options: RunOptions, world: int, controllers: int, index: int
) -> ControlServer:
    """Run one of the run's controllers in this process."""
    credentials = Credentials(own.run, f"controller of {own.site}", own.secret)
    control = options.control_options(world, controllers, index)
    trace = None if options.trace is None else Path(options.trace)
    return ControlServer(where.host, where.port, credentials, control, options.transport.port_range, trace)


def _wait_for_others(worker: Worker, world: int, abandoned: Callable[[], str | None] | None) -> None:
    """Until all have joined, or cannot."""
    deadlines = worker.deadlines
    until_s = time.monotonic() + deadlines.gather_s + deadlines.patience_s
    while not worker.joined.wait(ASK_AGAIN_S):
        if time.monotonic() > until_s:
            raise PeerLost(
                f"the run did not begin within {deadlines.gather_s:g} s. Check that all {world} are started."
            )
        if abandoned is not None and (reason := abandoned()) is not None:
            raise PeerLost(reason)


def _name(rank: int, world: int, name: str | None, network: Network | None, shape: ShapedNetwork | None) -> str:
    """What a rank is called: as it says, or as the network's site of that number."""
    names = network.names if network is not None else shape.names if shape is not None else ()
    if name is None and names and len(names) < world:
        raise BadOption(
            f"{world} ranks do not fit on the {len(names)} sites of the network. Give site= or a larger network."
        )
    found = name or (names[rank] if names else f"rank{rank}")
    if shape is not None and found not in shape.names:
        raise BadOption(
            f"{found!r} is no site of the network that this run imitates, which has {', '.join(shape.names)}."
        )
    return found


def find_secret(given: str | bytes | None) -> bytes:
    """The run's secret, from the argument or the environment."""
    secret = given if given is not None else os.environ.get(SECRET_VARIABLE, "")
    packed = secret.encode() if isinstance(secret, str) else secret
    if len(packed) < MIN_SECRET_BYTES:
        raise BadOption(
            f"a run needs a secret of at least {MIN_SECRET_BYTES} characters, the same for every process: pass secret= "
            f"or set {SECRET_VARIABLE}."
        )
    return packed


def _is_slow(network: Network | None) -> bool:
    """Whether links are what rounds wait for, as far as anybody has said."""
    links_bps = np.zeros(0) if network is None else network.bandwidth_bps[network.bandwidth_bps > 0]
    return bool(links_bps.size and np.median(links_bps) < FAST_BPS)


def _connections(here: str, network: Network | None, asked: int | None) -> Any:
    if asked is not None:
        return lambda _: asked

    def needed(peer: str) -> int:
        if network is None or not {here, peer} <= network.index.keys():
            return 1
        i, j = network.index[here], network.index[peer]
        both = ((i, j), (j, i))
        return max(connections_needed(float(network.bandwidth_bps[e]), float(network.latency_s[e])) for e in both)

    return needed
