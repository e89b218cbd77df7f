"""`tradewind.connect(...)`: a group of processes that all-reduce arrays.

    with tradewind.connect("10.0.0.1:4000", rank=0, world=4, secret="...") as group:
        total = group.all_reduce(gradients, op="mean")

Every rank of the group must submit the same operations in the same order. An operation either succeeds on every
member, or raises an error and leaves every input unchanged, except where the result overwrites it (`out=array`): then
a rank of a strict run may have the result although the run ends with an error for others.
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
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from tradewind.arithmetic import Array, check_operation, name_dtype
from tradewind.control import ControlOptions
from tradewind.dashboard import Diagnosis
from tradewind.errors import BadArray, BadOption, PeerLost, TradewindError
from tradewind.network import Network
from tradewind.node.actions import Outcome
from tradewind.node.collectives import CollectiveCall
from tradewind.node.measuring import MeasuringOptions
from tradewind.node.payload import same_memory
from tradewind.node.served import INIT, PUSH, Updater
from tradewind.planning.collective import Kind
from tradewind.planning.connections import is_slow
from tradewind.runtime import state_transfer
from tradewind.runtime.addresses import (
    HostPort,
    choose_addresses,
    is_on_this_host,
    listen_for_neighbours,
    listen_on,
    port_of,
)
from tradewind.runtime.arrays import as_array, check_out, check_residual, check_storage, copyable, rows_of
from tradewind.runtime.certificates import make_credentials
from tradewind.runtime.connections import ConnectionCounts, this_machine
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.options import (
    RunFields,
    RunOptions,
    choose_options,
    load_network,
    resolve_options,
)
from tradewind.runtime.peers import Connected, polls
from tradewind.runtime.probe import SeenNetwork
from tradewind.runtime.rank_metrics import RankMetrics
from tradewind.runtime.report import set_log_level
from tradewind.runtime.shape_alone import shape_from_environment
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.runtime.stats import GroupStats
from tradewind.runtime.tracing import RankTrace, rank_rate
from tradewind.runtime.worker import Worker
from tradewind.wire.codecs import NONE, can_encode, check_codec
from tradewind.wire.encoded_copy import EncodedCopy
from tradewind.wire.handshake import MIN_SECRET_BYTES, SECRET_VARIABLE, Credentials
from tradewind.wire.messages import Operation, Share

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

    def __init__(self, worker: Worker, server: ControlServer | None, rank: int, codec: str = NONE) -> None:
        self._worker, self._server, self._owner = worker, server, OwnerProcess()
        self._has_offered = False
        self.rank = rank
        self.codec = codec
        """How sums and means of floats are encoded, unless a call says otherwise."""
        self.name = worker.site
        self.model = 0
        """Number of the newest model that an outer optimizer of this rank has made (`Share.model`)."""
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
        self,
        array: ArrayLike,
        op: str = "sum",
        *,
        out: Array | None = None,
        dtype: str | None = None,
        codec: str | None = None,
        residual: Array | None = None,
    ) -> Array:
        """Reduce the arrays of all ranks with `op` and return the result.

        `op` is sum, mean, min, max, product, or for whole numbers and bool also band, bor, bxor. The sum of bool is or.

        `array` is a numpy array, or a value that numpy converts to one without loss: a list of numbers, a tensor on
        the CPU. It is not changed. The result is a numpy array: `out` if given, a new one otherwise. Raises BadArray
        for masked arrays, objects and text.

        `out=array` overwrites the input and needs no second array; if the operation fails, the content of the array
        is undefined. In a strict run it returns sooner on links with latency, without waiting for all other ranks.
        `dtype="bfloat16"` interprets a `uint16` array as bfloat16 bit patterns.

        `codec="int8"` sends sums and means of floats in fewer bytes, with rounding errors that are the same on all
        ranks (docs/guides/compression.md); the default is the run's option `codec`. `residual`, a float32 array of the
        same shape that starts at zero, holds what encoding lost at this rank: it is added to the input, and then holds
        what this call lost (error feedback).
        """
        return self.all_reduce_async(array, op, out=out, dtype=dtype, codec=codec, residual=residual).wait()

    def all_reduce_async(
        self,
        array: ArrayLike,
        op: str = "sum",
        *,
        out: Array | None = None,
        dtype: str | None = None,
        codec: str | None = None,
        residual: Array | None = None,
        encoded: EncodedCopy | None = None,
    ) -> Handle:
        """Start `all_reduce` and return its handle. Until it is done, do not change `array` or use `out`.

        `encoded` gets the encoded form of the result, if the round has one (`EncodedCopy.is_complete`).
        """
        return self._combine(array, op, out, dtype, coding=(codec, residual, encoded))

    def average(
        self, array: ArrayLike, *, out: Array | None = None, dtype: str | None = None, codec: str | None = None
    ) -> Array:
        """Return the weighted mean over the ranks that the run's policy groups with this one; all ranks under `bsp`.

        Unlike the other operations, ranks need not call it equally often. Under the policies `asp` and `ssp` the rank
        exchanges with a server instead: the server adds the change of the array since this rank's last call to its own
        array, and the result is the sum.
        """
        return self.average_async(array, out=out, dtype=dtype, codec=codec).wait()

    def average_async(
        self,
        array: ArrayLike,
        *,
        out: Array | None = None,
        dtype: str | None = None,
        part: int = 0,
        parts: int = 1,
        share: Share | None = None,
        codec: str | None = None,
        residual: Array | None = None,
    ) -> Handle:
        """Start `average` and return its handle; `parts` > 1 submits a step in several arrays as they become available.

        All parts of a step have the same members, which the policy chooses when they have submitted part 0. Every
        part must be submitted once, in any order, before the parts of the next step. `share`, given with part 0, is the
        weight of this rank's array and the number of the model that it is a change of: only ranks with the same model
        are averaged, and one with an older model than others gets an outcome that is `alone`.
        """
        if self._worker.has_server:
            return self._exchange_change(array, out, part_key(part, parts), part, parts)
        return self._combine(array, "mean", out, dtype, (part, parts), (codec, residual, None), share)

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
        of: tuple[int | None, int] = (None, 1),
        coding: tuple[str | None, Array | None, EncodedCopy | None] = (None, None, None),
        share: Share | None = None,
    ) -> Handle:
        """Submit a sum, a mean or the like; `of` is the part and the number of parts of a step."""
        array = as_array(array)
        name = dtype or name_dtype(array)
        check_operation(op, name)
        codec, residual, encoded = self._codec_for(coding[0], op, name), *coding[1:]
        check_storage(array, name)
        own = np.ascontiguousarray(array).reshape(array.shape)  # reshape: else a scalar gets a dimension
        if out is not None:
            check_out(out, array, own)
        result = np.empty(own.shape, own.dtype) if out is None else out
        operation = Operation(own.size, own.itemsize, name, op, parts=of[1], codec=codec)
        if residual is not None:
            check_residual(residual, own)
            own = np.add(own, residual, out=own if out is not None and same_memory(own, out) else None)
            residual.fill(0.0)  # what encoding loses is added by the round; without one, nothing is lost
        return self._submit(operation, own, result, of[0], share, residual, encoded)

    def _codec_for(self, given: str | None, op: str, dtype: str) -> str:
        """The codec of an operation: the given one, or else that of the run, if it can encode the operation."""
        if given is None:
            return self.codec if can_encode(op, dtype) else NONE
        if check_codec(given) != NONE and not can_encode(op, dtype):
            raise BadArray(f"codec={given!r} needs op='sum' or 'mean' of floats, got op={op!r} of {dtype}.")
        return given

    def broadcast(self, array: ArrayLike, root: int = 0) -> Array:
        """Return a bit-exact copy of the array of rank `root`, of any dtype but object, on every rank.

        The other ranks pass an array of the same size and dtype, which is not changed.
        """
        given = copyable(array)
        result = np.array(given, order="C") if self.rank == root else np.empty(given.shape, given.dtype)
        return self.start("broadcast", result, result, root=root).wait()

    def reduce(self, array: ArrayLike, op: str = "sum", root: int = 0, *, dtype: str | None = None) -> Array | None:
        """Reduce the arrays of all ranks with `op`; rank `root` gets the result, the others None."""
        own = np.ascontiguousarray(as_array(array))
        result = np.empty(own.shape if self.rank == root else (0,), own.dtype)
        found = self.start("reduce", own, result, op=op, root=root, dtype=dtype).wait()
        return found if self.rank == root else None

    def all_gather(self, array: ArrayLike, *, sizes: Sequence[int] | None = None) -> Array:
        """Return the arrays of all ranks, joined along their first axis in the order of ranks, on every rank.

        Arrays have the same shape; with `sizes`, the lengths of the first axis of all ranks, they may differ in it.
        """
        own, rows = rows_of(array), self._rows(sizes)
        lengths = rows or (len(own),) * self.world
        result = np.empty((sum(lengths), *own.shape[1:]), own.dtype)
        return self.start("all-gather", own, result, sizes=_items(rows, own)).wait()

    def reduce_scatter(
        self,
        array: ArrayLike,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Array:
        """Reduce the arrays of all ranks with `op`, and return this rank's part of the result.

        The first axis is cut into a part for each rank, in the order of ranks: equal parts, or those of `sizes`.
        """
        own, rows = rows_of(array), self._rows(sizes)
        result = np.empty((self._own_rows(own, rows), *own.shape[1:]), own.dtype)
        return self.start("reduce-scatter", own, result, op=op, sizes=_items(rows, own), dtype=dtype).wait()

    def gather(self, array: ArrayLike, root: int = 0, *, sizes: Sequence[int] | None = None) -> Array | None:
        """As `all_gather`, for rank `root` alone; the others get None."""
        own, rows = rows_of(array), self._rows(sizes)
        lengths = rows or (len(own),) * self.world
        result = np.empty((sum(lengths) if self.rank == root else 0, *own.shape[1:]), own.dtype)
        found = self.start("gather", own, result, root=root, sizes=_items(rows, own)).wait()
        return found if self.rank == root else None

    def scatter(self, array: ArrayLike, root: int = 0, *, sizes: Sequence[int] | None = None) -> Array:
        """Return this rank's part of the array of rank `root`, cut as by `reduce_scatter`.

        The other ranks pass an array of the same shape and dtype, which is not read.
        """
        own, rows = rows_of(array), self._rows(sizes)
        result = np.empty((self._own_rows(own, rows), *own.shape[1:]), own.dtype)
        return self.start("scatter", own, result, root=root, sizes=_items(rows, own)).wait()

    def all_to_all(self, array: ArrayLike) -> Array:
        """Return part k of the array of every rank on rank k, joined in the order of ranks; parts are equal."""
        own = rows_of(array)
        self._own_rows(own, None)
        return self.start("all-to-all", own, np.empty_like(own)).wait()

    def start(
        self,
        kind: Kind,
        array: Array,
        out: Array,
        *,
        op: str = "sum",
        root: int = 0,
        sizes: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Handle:
        """Start a collective other than the all-reduce and return its handle; the methods above wait for it.

        `array` and `out` are contiguous arrays of one dtype: the input, and what this rank gets of the result; empty
        where it gets nothing. `sizes` are the items of each rank's part, equal ones by default. `op` and `dtype` are
        those of `all_reduce`, for collectives that reduce.
        """
        if not 0 <= root < self.world:
            raise BadOption(f"root must be in [0, {self.world}), got {root}.")
        call = CollectiveCall(kind, array, out, self.rank, root, self.names, tuple(sizes or ()))
        operation = call.operation(op, dtype)
        call.copy_own()
        own, result = call.arrays(operation)
        handle = Handle(out)
        self._owner.check(f"group {self.name!r}")
        self._worker.submit(operation, own, result, handle._end, None)
        return handle

    def _rows(self, sizes: Sequence[int] | None) -> tuple[int, ...]:
        if sizes is not None and (len(sizes) != self.world or min(sizes) < 0):
            raise BadArray(f"sizes must be {self.world} lengths, one for each rank, got {list(sizes)}.")
        return tuple(sizes or ())

    def _own_rows(self, own: Array, rows: tuple[int, ...] | None) -> int:
        """The length of this rank's part of an array."""
        if rows:
            if sum(rows) != len(own):
                raise BadArray(f"sizes add up to {sum(rows)}, but the array has {len(own)} rows.")
            return rows[self.rank]
        if len(own) % self.world:
            raise BadArray(
                f"an array of {len(own)} rows cannot be cut into {self.world} equal parts, one for each rank. Pad it, "
                "or give sizes=."
            )
        return len(own) // self.world

    def barrier(self) -> None:
        """Wait until all ranks have called `barrier`."""
        self.barrier_async().wait()

    def barrier_async(self) -> Handle:
        """Start `barrier` and return its handle."""
        one = np.ones(1, np.int32)
        return self._submit(Operation(1, 4, "int32", "sum", root="barrier"), one, np.empty_like(one))

    def _submit(
        self,
        operation: Operation,
        own: Array,
        result: Array,
        part: int | None = None,
        share: Share | None = None,
        residual: Array | None = None,
        encoded: EncodedCopy | None = None,
    ) -> Handle:
        self._owner.check(f"group {self.name!r}")
        handle = Handle(result)
        writable = result.view()  # stays writable if the caller clears the flag of `result`
        self._worker.submit(operation, own, writable, handle._end, part, share, residual, encoded)
        return handle

    @property
    def tolerant(self) -> bool:
        """Whether the run continues without lost ranks and lets ranks join later."""
        return self._worker.tolerant

    def offer_state(self, offer: state_transfer.Offer | None, version: state_transfer.Version | None = None) -> None:
        """Set the function that returns the current state as bytes for ranks that join; None: offer nothing.

        It is called in another thread, and what it returns must not change afterwards. `version` returns the number of
        the state that it would return now, such as the number of steps taken; negative: none yet. Members that offer
        the same bytes of the same version send them together. If one of the functions raises, the error is logged and
        the requesting rank is answered that this rank has no state to offer.
        """
        self._owner.check(f"group {self.name!r}")
        self._worker.offers.version, self._worker.offers.offer = version, offer
        self._has_offered |= offer is not None

    @property
    def has_offered(self) -> bool:
        """Whether this rank has offered a state at some time: it is not one that joins."""
        return self._has_offered

    def fetch_state(
        self, newer_than: int = -1, sources: Sequence[str] | None = None
    ) -> state_transfer.FetchedState | None:
        """Request the newest state from the other ranks, for a rank that joins a running group or has fallen behind.

        All ranks that offer the same bytes send slices of them at once, those with the faster links more; what a lost
        one has not sent comes from the others. Slices and the whole are checked by digests. None if no rank offers a
        state of a newer version than `newer_than`; raises PeerLost if all that do are lost again and again. `sources`:
        the only ranks to ask.
        """
        self._owner.check(f"group {self.name!r}")
        worker = self._worker
        limits_s = worker.deadlines.handshake_s, worker.deadlines.silence_s
        try:
            links = self.network().links
        except TradewindError:  # without estimates the rates are measured while the state is received
            links = ()
        rates_bps = {link.src: link.bandwidth_bps for link in links if link.dst == self.name and link.count}
        asked = [address for address in worker.addresses if sources is None or address.site in sources]
        return state_transfer.ask(asked, worker.credentials, limits_s, rates_bps, newer_than)

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
    network = None if network is None else network.sites_only()
    chosen = chosen.replaced(network=network)
    shape = hooks.shape or shape_from_environment()
    name = _name(rank, world, chosen.site, network, shape)
    addresses = [HostPort.parse(place) for place in _places(address, chosen)]
    credentials = find_credentials(run, name, secret, chosen, polls(is_slow(network), shape))
    aware, transport = chosen.awareness, chosen.transport
    how = MeasuringOptions(aware.estimator, aware.min_chunk_bytes, aware.probe_chunks, aware.report_s)
    bound, advertised = choose_addresses(transport.bind, transport.interface, transport.advertise)
    server = None
    if rank < len(addresses) and not chosen.controllers:
        control = chosen.control_options(world, len(addresses), rank, this_machine() if shape is None else None)
        server = _serve(addresses[rank], credentials, chosen, control)
        addresses[rank] = HostPort(addresses[rank].host, server.port)
    near = transport.local_sockets and shape is None
    counts = ConnectionCounts(name, network, transport.connections)
    measuring = how if aware.measure or aware.probe else None
    about = is_slow(network), shape, measuring, near, hooks.connected
    worker = Worker(credentials, chosen.tolerance.deadlines, counts, *about)
    worker.inline_bytes = transport.inline_bytes if shape is None else 0  # control messages are not shaped
    try:
        _observe(worker, chosen, rank, world)
        if server is not None and hooks.listening is not None:
            hooks.listening(str(addresses[rank]))
        allowed = transport.port_range
        controllers = {place.port for place in addresses if allowed and is_on_this_host(place.host)}
        socks = [listen_on(bound, 0, allowed, reserved=controllers)]
        if near and (beside := listen_for_neighbours(run, name, port_of(socks[0]))) is not None:
            socks.append(beside)
        worker.start(addresses, socks, advertised, rank, server if len(addresses) == 1 else None)
        _wait_for_others(worker, world, hooks.abandoned)
        if worker.lost is not None:
            raise worker.lost.fresh()
    except BaseException as error:
        worker.close(PeerLost(f"{name!r} could not join."))
        if server is not None:
            server.close(f"{name!r}, which runs the controller, could not join ({str(error)[:LONGEST_REASON]})")
        raise
    return Group(worker, server, rank, chosen.codec)


def _observe(worker: Worker, options: RunOptions, rank: int, world: int) -> None:
    """Begin the trace of a rank and serve its metrics, as far as they are wanted."""
    if options.trace is not None:
        rate = rank_rate(options.trace_minute_bytes, world)
        folder = Path(options.trace)
        worker.trace = RankTrace(folder, worker.site, worker.compare_clocks, worker.peer_name, rate)
    if (served := options.metrics_address) is not None:
        worker.metrics = RankMetrics(served, lambda: worker.stats(rank, None))


def _places(address: str | Sequence[str] | None, options: RunOptions) -> Sequence[str]:
    """The addresses of the controllers."""
    if options.controllers:
        return options.controllers
    if address is None:
        raise BadOption("address is None: give HOST:PORT where rank 0 runs the controller, or set controller=.")
    return [address] if isinstance(address, str) else address


def _serve(where: HostPort, own: Credentials, options: RunOptions, control: ControlOptions) -> ControlServer:
    """Run one of the run's controllers in this process."""
    credentials = replace(own, site=f"controller of {own.site}")
    ports, page = options.transport.port_range, options.dashboard_address
    return ControlServer(where.host, where.port, credentials, control, ports, options.trace_place, page)


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
    """The name of a rank: `name` if given, else that of the network at the rank's position."""
    names = network.rank_names if network is not None else shape.names if shape is not None else ()
    if name is None and names and len(names) < world:
        raise BadOption(
            f"the network has {len(names)} sites for {world} ranks. Set site= on every rank, as SITE/0, SITE/1 where a "
            'site has several, or "ranks" of its sites in the network file.'
        )
    found = name or (names[rank] if names else f"rank{rank}")
    if shape is not None and found not in shape.names:
        raise BadOption(
            f"site {found!r} is not in the network that this run imitates. Expected one of {', '.join(shape.names)}."
        )
    return found


def find_credentials(
    run: str, site: str, secret: str | bytes | None, options: RunOptions, polled: bool = False
) -> Credentials:
    """The credentials of a process for a run: with its secret, unless `security` is off, and with certificates.

    `polled`: one thread serves its data connections, which TLS encrypts.
    """
    packed = b"" if options.security == "off" else find_secret(secret)
    return make_credentials(run, site, packed, options.security, options.tls.files, options.tls.aead and not polled)


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


def _items(rows: tuple[int, ...], own: Array) -> tuple[int, ...]:
    """Items of parts with these numbers of rows."""
    width = int(np.prod(own.shape[1:], dtype=np.int64))
    return tuple(length * width for length in rows)
