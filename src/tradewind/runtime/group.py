"""`tradewind.connect(...)`: a group of processes that all-reduce arrays.

    with tradewind.connect("10.0.0.1:4000", rank=0, world=4, secret="...") as group:
        total = group.all_reduce(gradients, op="mean")

Every rank of the group must submit the same operations in the same order. An operation either succeeds on every
member, or raises an error and leaves every input unchanged, except where the result overwrites it (`out=array`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from tradewind.arithmetic import Array, check_operation, name_dtype, storage_of
from tradewind.dashboard import Diagnosis
from tradewind.errors import BadArray, BadOption, PeerLost, TradewindError
from tradewind.network import Network
from tradewind.node.actions import Outcome
from tradewind.node.measuring import MeasuringOptions
from tradewind.node.payload import same_memory
from tradewind.node.served import INIT, PUSH, Updater
from tradewind.runtime import state_transfer
from tradewind.runtime.addresses import (
    HostPort,
    choose_addresses,
    is_on_this_host,
    listen_for_neighbours,
    listen_on,
)
from tradewind.runtime.certificates import make_credentials
from tradewind.runtime.connections import ConnectionCounts, is_slow
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.options import (
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

LONGEST_REASON = 1000
"""Characters of an error message that are sent to other ranks."""
POLL_S = 0.5
"""Interval at which `Hooks.abandoned` is called while ranks are still joining."""


class Handle:
    """A submitted operation."""

    def __init__(self, result: Array) -> None:
        self._result, self._owner = result, OwnerProcess()
        self._done = threading.Event()
        self._how: TradewindError | Outcome | None = None
        self._lock = threading.Lock()
        self._calls: list[Callable[[TradewindError | None], None]] = []

    @property
    def done(self) -> bool:
        """Whether the operation has ended, successfully or with an error."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> Array:
        """Wait for the operation and return its result.

        Raises the operation's error if it failed, and TimeoutError if it has not ended after `timeout_s` seconds
        (None: wait without limit).
        """
        if not self.done:
            self._owner.check("a running operation")
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the operation has not ended after {timeout_s} s.")
        if isinstance(self._how, TradewindError):
            raise self._how.fresh()
        return self._result

    @property
    def outcome(self) -> Outcome:
        """The members, weights and duration of the operation; waits for its end and raises as `wait` does."""
        self.wait()
        assert isinstance(self._how, Outcome)
        return self._how

    def when_done(self, call: Callable[[TradewindError | None], None]) -> None:
        """Call `call` with the error, or None on success, when the operation ends; at once if it has ended.

        `call` runs in a thread that also moves bytes, so it should return quickly. An exception that it raises is
        logged and affects neither the operation nor the run.
        """
        with self._lock:
            if not self.done:
                self._calls.append(call)
                return
        self._notify(call)

    def _end(self, how: TradewindError | Outcome) -> None:
        with self._lock:
            self._how = how
            self._done.set()
        for call in self._calls:
            self._notify(call)

    def _notify(self, call: Callable[[TradewindError | None], None]) -> None:
        try:
            call(self._how if isinstance(self._how, TradewindError) else None)
        except Exception:
            log.exception("a when_done callback raised an error; the run continues")


class Group:
    """One rank's view of a run, and the operations with the other ranks. Created by `connect`."""

    def __init__(self, worker: Worker, server: ControlServer | None, rank: int) -> None:
        self._worker, self._server, self._owner = worker, server, OwnerProcess()
        self.rank = rank
        self.name = worker.site
        self._exchanging: dict[str, Handle] = {}
        """The last exchange with a server, by key."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all present ranks: the initial ranks in order, then those that joined later."""
        return self._worker.roster

    @property
    def world(self) -> int:
        """The number of present ranks."""
        return len(self._worker.roster)

    def all_reduce(
        self, array: ArrayLike, op: str = "sum", *, out: Array | None = None, dtype: str | None = None
    ) -> Array:
        """Reduce the arrays of all ranks with `op` (sum, mean, min, max, product) and return the result.

        `array` is a numpy array, or a value that numpy converts to one without loss: a list of numbers, a tensor on
        the CPU. It is not changed. The result is a numpy array: `out` if given, a new one otherwise. Raises BadArray
        for masked arrays, objects and text.

        `out=array` overwrites the input and needs no second array; if the operation fails, the content of the array
        is undefined. `dtype="bfloat16"` interprets a `uint16` array as bfloat16 bit patterns.
        """
        return self.all_reduce_async(array, op, out=out, dtype=dtype).wait()

    def all_reduce_async(
        self, array: ArrayLike, op: str = "sum", *, out: Array | None = None, dtype: str | None = None
    ) -> Handle:
        """Start `all_reduce` and return its handle. Until it is done, do not change `array` or use `out`."""
        return self._combine(array, op, out, dtype)

    def average(self, array: ArrayLike, *, out: Array | None = None, dtype: str | None = None) -> Array:
        """Return the weighted mean over the ranks that the run's policy groups with this one; all ranks under `bsp`.

        Unlike the other operations, ranks need not call it equally often. Under the policies `asp` and `ssp` the rank
        exchanges with a server instead: the server adds the change of the array since this rank's last call to its own
        array, and the result is the sum.
        """
        return self.average_async(array, out=out, dtype=dtype).wait()

    def average_async(
        self, array: ArrayLike, *, out: Array | None = None, dtype: str | None = None, part: int = 0, parts: int = 1
    ) -> Handle:
        """Start `average` and return its handle; `parts` > 1 submits a step in several arrays as they become available.

        All parts of a step have the same members, which the policy chooses when they have submitted part 0. Every
        part must be submitted once, in any order, before the parts of the next step.
        """
        if self._worker.has_server:
            return self._exchange_change(array, out, part_key(part, parts), part, parts)
        return self._combine(array, "mean", out, dtype, part, parts)

    @property
    def has_server(self) -> bool:
        """Whether the run's policy has a server that keeps the model (`asp`, `ssp`)."""
        return self._worker.has_server

    def push(self, array: ArrayLike, key: str, *, out: Array | None = None) -> Array:
        """Add `array` to the array that the server keeps under `key`, and return that; the policy is `asp` or `ssp`.

        Raises BadOption for another policy.
        """
        return self.push_async(array, key, out=out).wait()

    def push_async(self, array: ArrayLike, key: str, *, out: Array | None = None) -> Handle:
        """Start `push` and return its handle. Until it is done, do not change `array` or use `out`."""
        if not self._worker.has_server:
            raise BadOption("push needs a server. Use the scheme ps-asp or ps-ssp, or a KVStore without a server.")
        return self._exchange(array, PUSH, out, key, 0, 1)

    def serve(self, key: str, array: ArrayLike, updater: Updater | None = None) -> None:
        """Set the array that a server starts with under `key`: on all ranks, with the same values, before any pushes.

        `updater(key, pushed, stored)` returns the new items of the server for pushed ones; by default their sum. It is
        called for parts of the array, in any order.
        """
        served = self._worker.served(key)
        served.pulled, served.updater = np.array(as_array(array)).reshape(-1), updater

    def _exchange_change(self, array: ArrayLike, out: Array | None, key: str, part: int, parts: int) -> Handle:
        """Exchange the change of an array since the last exchange under this key, or at first the array."""
        before = self._exchanging.get(key)
        if before is not None:
            with contextlib.suppress(TradewindError):
                before.wait()  # a change is relative to its result
        pulled, array = self._worker.served(key).pulled, as_array(array)
        if pulled is None or pulled.size != array.size:
            handle = self._exchange(array, INIT, out, key, part, parts)
        else:
            result = np.empty(array.shape, array.dtype) if out is None else out
            handle = self._exchange(array - pulled.reshape(array.shape), PUSH, result, key, part, parts)
        self._exchanging[key] = handle
        return handle

    def _exchange(self, array: ArrayLike, op: str, out: Array | None, key: str, part: int, parts: int) -> Handle:
        array = as_array(array)
        if array.dtype not in (np.float32, np.float64):
            raise BadArray(f"a server keeps arrays of float32 or float64, got {array.dtype}. Convert the array.")
        own = np.ascontiguousarray(array).reshape(array.shape)
        if out is not None:
            check_out(out, array, own)
        result = np.empty(own.shape, own.dtype) if out is None else out
        operation = Operation(own.size, own.itemsize, name_dtype(array), op, root=key, parts=parts)
        return self._submit(operation, own, result, part)

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
        own = np.ascontiguousarray(array).reshape(array.shape)  # reshape: else a scalar gets a dimension
        if out is not None:
            check_out(out, array, own)
        result = np.empty(own.shape, own.dtype) if out is None else out
        return self._submit(Operation(own.size, own.itemsize, name, op, parts=parts), own, result, part)

    def broadcast(self, array: ArrayLike, root: int = 0) -> Array:
        """Return a bit-exact copy of the array of rank `root`, of any dtype but object, on every rank.

        The other ranks pass an array of the same size and dtype, which is not changed.
        """
        if not 0 <= root < self.world:
            raise BadOption(f"root must be in [0, {self.world}), got {root}.")
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
        """Wait until all ranks have called `barrier`."""
        one = np.ones(1, np.int32)
        self._submit(Operation(1, 4, "int32", "sum", root="barrier"), one, np.empty_like(one)).wait()

    def _submit(self, operation: Operation, own: Array, result: Array, part: int | None = None) -> Handle:
        self._owner.check(f"group {self.name!r}")
        handle = Handle(result)
        writable = result.view()  # stays writable if the caller clears the flag of `result`
        self._worker.submit(operation, own, writable, handle._end, part)
        return handle

    @property
    def tolerant(self) -> bool:
        """Whether the run continues without lost ranks and lets ranks join later."""
        return self._worker.tolerant

    def offer_state(self, offer: state_transfer.Offer | None) -> None:
        """Set the function that returns the current model for ranks that join; None: offer nothing.

        It is called in another thread for each request. If it raises, the error is logged and the requesting rank is
        answered that this rank has no state to offer.
        """
        self._owner.check(f"group {self.name!r}")
        self._worker.offer = offer

    def fetch_state(self) -> tuple[str, bytearray] | None:
        """Request the current model from the other ranks, for a rank that joins a running group.

        Returns the name of the first rank that offers one, and its bytes; None if no rank does.
        """
        self._owner.check(f"group {self.name!r}")
        worker = self._worker
        limits_s = worker.deadlines.handshake_s, worker.deadlines.silence_s
        return state_transfer.ask(worker.addresses, worker.credentials, *limits_s)

    def stats(self) -> GroupStats:
        """The counters and current state of this rank: rounds, bytes, peers, plans, memory (docs/runtime.md).

        May be called from any thread at any time, also after `close`. It costs about as much as a control message.
        """
        self._owner.check(f"group {self.name!r}")
        return self._worker.stats(self.rank, None if self._server is None else self._server.stats())

    def diagnose(self) -> Diagnosis | None:
        """Why the last slow round was slow: cause, rank or link, and a sentence (docs/guides/watching.md).

        None if no round took much longer than predicted. Raises BadOption unless this process runs the controller with
        `dashboard` set.
        """
        self._owner.check(f"group {self.name!r}")
        live = None if self._server is None else self._server.live
        if live is None:
            raise BadOption(
                "diagnose needs dashboard= on the rank that runs the controller. Set it, and call it there."
            )
        return live.diagnosis()

    @property
    def controller(self) -> ControlServer | None:
        """The controller, if this process runs one; for tests and benchmarks (`ControlServer.change`)."""
        return self._server

    def network(self) -> SeenNetwork:
        """The controller's current link estimates: given with `network=`, or measured from the traffic of this run."""
        self._owner.check(f"group {self.name!r}")
        return SeenNetwork.from_message(self._worker.network_seen())

    def close(self) -> None:
        """Leave the group; running operations fail. Does nothing in a forked child, since the run is its parent's."""
        if not self._owner.is_here:
            return
        self._worker.close()
        if self._server is not None:
            self._server.close(f"{self.name!r}, which runs the controller, has left the run")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def part_key(part: int, parts: int) -> str:
    """The key under which a server keeps a part of what ranks average.

    >>> part_key(0, 2)
    'part 0 of 2'
    """
    return f"part {part} of {parts}"


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks and settings that callers inside Tradewind (lab, PyTorch backend, tests) pass to `connect`."""

    shape: ShapedNetwork | None = None
    """The network whose links data connections imitate. Default: the file that TRADEWIND_SHAPE names, if set."""
    listening: Callable[[str], None] | None = None
    """Called with the address of the controller, if this rank runs one, before waiting for other ranks."""
    abandoned: Callable[[], str | None] | None = None
    """Polled while waiting for other ranks; `connect` fails with the reason that it returns, if any."""
    connected: Connected | None = None
    """Called with a peer's name and the socket of each new data connection, before anything is sent on it."""


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
    """Join a run of `world` ranks; returns when all have joined.

    `address` is the HOST:PORT of the controller, which rank 0 runs. With several addresses, rank 0 runs the controller
    at the first, rank 1 a standby at the second, and so on (docs/guides/elastic.md); such a run is tolerant. If
    `controller` is set, by argument, environment or file, a `tradewind controller` process runs there and `address` may
    be None. The secret comes from the argument or the environment variable TRADEWIND_SECRET.

    All other arguments are options of the run (docs/reference/options.md), either `options=RunOptions(planner="ring")`
    or keywords (`planner="ring"`). Options that are not given come from TRADEWIND_* variables, then `tradewind.toml`.

    Raises BadOption for invalid options, and PeerLost or NotAdmitted if the run cannot be joined.
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
    credentials = find_credentials(run, name, secret, chosen)
    aware, transport = chosen.awareness, chosen.transport
    how = MeasuringOptions(aware.estimator, aware.min_chunk_bytes, aware.probe_chunks, aware.report_s)
    bound, advertised = choose_addresses(transport.bind, transport.interface, transport.advertise)
    server = None
    if rank < len(addresses) and not chosen.controllers:
        server = _serve(addresses[rank], credentials, chosen, world, len(addresses), rank)
        addresses[rank] = HostPort(addresses[rank].host, server.port)
    near = transport.local_sockets and shape is None
    counts = ConnectionCounts(name, network, transport.connections)
    measuring = how if aware.measure else None
    about = is_slow(network), shape, measuring, near, hooks.connected
    worker = Worker(credentials, chosen.tolerance.deadlines, counts, *about)
    worker.inline_bytes = transport.inline_bytes if shape is None else 0  # control messages are not shaped
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
    """The addresses of the controllers."""
    if options.controllers:
        return options.controllers
    if address is None:
        raise BadOption("address is None: give HOST:PORT where rank 0 runs the controller, or set controller=.")
    return [address] if isinstance(address, str) else address


def _serve(
    where: HostPort, own: Credentials, options: RunOptions, world: int, controllers: int, index: int
) -> ControlServer:
    """Run one of the run's controllers in this process."""
    credentials = replace(own, site=f"controller of {own.site}")
    control = options.control_options(world, controllers, index)
    trace = None if options.trace is None else Path(options.trace)
    ports, page = options.transport.port_range, options.dashboard_address
    return ControlServer(where.host, where.port, credentials, control, ports, trace, page)


def _wait_for_others(worker: Worker, world: int, abandoned: Callable[[], str | None] | None) -> None:
    """Wait until all ranks have joined; raises PeerLost if they do not in time or `abandoned` returns a reason."""
    deadlines = worker.deadlines
    until_s = time.monotonic() + deadlines.gather_s + deadlines.patience_s
    while not worker.joined.wait(POLL_S):
        if time.monotonic() > until_s:
            raise PeerLost(
                f"the run did not start within {deadlines.gather_s:g} s. Check that all {world} ranks are started."
            )
        if abandoned is not None and (reason := abandoned()) is not None:
            raise PeerLost(reason)


def _name(rank: int, world: int, name: str | None, network: Network | None, shape: ShapedNetwork | None) -> str:
    """The name of a rank: `name` if given, else the site of the network at the rank's position."""
    names = network.names if network is not None else shape.names if shape is not None else ()
    if name is None and names and len(names) < world:
        raise BadOption(
            f"the network has {len(names)} sites for {world} ranks. Set site= on every rank or give a larger network."
        )
    found = name or (names[rank] if names else f"rank{rank}")
    if shape is not None and found not in shape.names:
        raise BadOption(
            f"site {found!r} is not in the network that this run imitates. Expected one of {', '.join(shape.names)}."
        )
    return found


def find_credentials(run: str, site: str, secret: str | bytes | None, options: RunOptions) -> Credentials:
    """The credentials of a process for a run: with its secret, unless `security` is off, and with certificates."""
    packed = b"" if options.security == "off" else find_secret(secret)
    return make_credentials(run, site, packed, options.security, options.tls.files)


def find_secret(given: str | bytes | None) -> bytes:
    """The run's secret as bytes, from the argument or TRADEWIND_SECRET; raises BadOption if it is too short."""
    secret = given if given is not None else os.environ.get(SECRET_VARIABLE, "")
    packed = secret.encode() if isinstance(secret, str) else secret
    if len(packed) < MIN_SECRET_BYTES:
        raise BadOption(
            f"a run needs a secret of at least {MIN_SECRET_BYTES} characters, the same on every rank: pass secret= or "
            f"set {SECRET_VARIABLE}. `tradewind secret` prints a good one."
        )
    return packed


# --- arrays as callers pass them: converted without loss, or refused -------------------------------------------------


def as_array(value: Any) -> Array:
    """A numpy array of a caller's value, sharing its memory if possible; lists and CPU tensors are converted.

    Raises BadArray where the conversion would lose something.

    >>> as_array([1.5, 2.0])
    array([1.5, 2. ])
    """
    if isinstance(value, np.ma.MaskedArray):
        raise BadArray("a masked array cannot be synchronised: ranks may mask different items. Use array.filled(...).")
    try:
        return np.asarray(value)
    except Exception as error:  # of the other library, such as for a tensor that requires a gradient
        raise BadArray(
            f"a {type(value).__name__} cannot be used as a numpy array ({error}). Give an array, a list of numbers, or "
            "a tensor on the CPU; the bits of a bfloat16 tensor are tensor.view(torch.uint16), with dtype='bfloat16'."
        ) from error


def check_storage(array: Array, dtype: str) -> None:
    """Raise BadArray if the array's dtype is not the one that `dtype` is stored as."""
    if array.dtype != storage_of(dtype):
        raise BadArray(f"dtype={dtype!r} needs an array of {storage_of(dtype)}, got one of {array.dtype}.")


def check_out(out: Any, array: Array, own: Array) -> None:
    """Raise BadArray if `out` cannot hold the result for `array`, whose contiguous form is `own`."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise BadArray(
            f"out must be a numpy array, got a {type(out).__name__}. For a tensor on the CPU give out=tensor.numpy()."
        )
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.c_contiguous:
        raise BadArray(
            f"out must be a contiguous {array.dtype} array of shape {array.shape} like array, got a "
            f"{'' if out.flags.c_contiguous else 'non-contiguous '}{out.dtype} array of shape {out.shape}."
        )
    if not out.flags.writeable:
        raise BadArray("out is read-only. Pass a writable array, or omit out= to get a new one.")
    if np.may_share_memory(own, out) and not same_memory(own, out):
        raise BadArray("out overlaps the memory of array in part. Pass array itself as out, or a separate array.")
