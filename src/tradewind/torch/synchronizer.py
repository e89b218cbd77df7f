"""`Synchronizer`: training that averages models, every few local steps, in the groups that the policy forms.

    sync = Synchronizer(model, policy="partial", policy_options={"p": 4}, planner="relay")
    for batch in data:
        loss(model(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        outcome = sync.step()       # the round's contributors, their weights, and its duration

Parameters, not gradients, are averaged, after the local step: so ranks may differ in how many steps they have taken,
and any optimizer works. The optimizer's state, such as momentum, stays local to each rank, unless `average_state`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore
from torch.optim import Optimizer

from tradewind.arithmetic import Array
from tradewind.errors import BadArray, BadOption
from tradewind.node.actions import Outcome
from tradewind.runtime.group import Group, Handle, connect
from tradewind.runtime.options import RunFields, RunOptions, choose_options, resolve_options
from tradewind.torch.averaging import Averager, Pending
from tradewind.torch.buckets import BUCKET_BYTES, Bucket, Tracked, pack, tracked_tensors
from tradewind.torch.ensemble import Ensemble, MovingAverage
from tradewind.torch.outer import COMMON_POLICIES, Fragment, Outer, OuterSteps, Sent, find_preset
from tradewind.torch.overlap import LayerwiseOverlap
from tradewind.torch.rendezvous import Place, connect_group, identify
from tradewind.wire.messages import Share

log = logging.getLogger("tradewind.torch")

ALIGNMENT = 4
"""Size of the words that a broadcast sends, in bytes."""


def start_from_others(group: Group, model: nn.Module, without: Set[str] = frozenset()) -> memoryview | None:
    """Load the run's current model into `model`; returns what else the offer of the members contained.

    At the start of a run all ranks receive rank 0's model by broadcast; returns None. A rank offers its model only
    after that, so a rank that finds an offer is joining a running run, in which no other rank would take part in a
    broadcast: it fetches the model of the members instead. That offer lacks the tensors named in `without`. A rank that
    has offered a model itself starts the next training of the same run with all others, some of which may still offer
    the last one. Raises `BadArray` if the model has another size.
    """
    fetched = group.fetch_state() if group.tolerant and not group.has_offered else None
    if fetched is None:
        put(model, torch.from_numpy(np.array(group.broadcast(packed(model).numpy().view(np.int32)))).view(torch.uint8))
        return None
    nbytes = len(packed(model, without))
    if len(fetched.data) < nbytes or (len(fetched.data) > nbytes and not without):
        raise BadArray(
            f"the model of {fetched.sources[0]!r} has {len(fetched.data)} bytes, this rank's has {nbytes}. Create the "
            "same model on every rank."
        )
    if nbytes:
        put(model, torch.frombuffer(fetched.data, dtype=torch.uint8)[:nbytes], without)
    return memoryview(fetched.data)[nbytes:]


def _tensors(model: nn.Module, without: Set[str]) -> list[Tensor]:
    state = {name: value for name, value in model.state_dict().items() if name not in without}
    return [t.detach() for t in state.values() if isinstance(t, Tensor) and t.numel()]


@torch.no_grad()
def packed(model: nn.Module, without: Set[str] = frozenset()) -> Tensor:
    """All parameters and persistent buffers, without those named, as one tensor of bytes, padded to `ALIGNMENT`."""
    pieces = [t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in _tensors(model, without)]
    nbytes = sum(map(len, pieces))
    whole = torch.zeros(-(-nbytes // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8)
    if pieces:
        torch.cat(pieces, out=whole[:nbytes])
    return whole


@torch.no_grad()
def put(model: nn.Module, whole: Tensor, without: Set[str] = frozenset()) -> None:
    """Copy the bytes that `packed` returned into the model's parameters and buffers."""
    tensors = _tensors(model, without)
    lengths = [t.numel() * t.element_size() for t in tensors]
    for tensor, piece in zip(tensors, whole[: sum(lengths)].split(lengths), strict=True):
        tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))


DEFAULTS = RunOptions(policy="partial")
OUTER_DEFAULTS = RunOptions(policy="quorum")
"""The same with a preset, whose outer optimizer needs the same rounds on all ranks."""
FINDING: tuple[str, ...] = ("address", "rank", "world", "secret", "run")
"""Arguments of `tradewind.connect` that find the other ranks."""
_count = itertools.count()


def join(options: RunOptions, found: Mapping[str, Any]) -> Group:
    """Join a new run: by `tradewind.connect` with address, rank and world from `found`, or through torch.distributed.

    Raises `BadOption` if some of these arguments are missing, or torch.distributed is not initialised.
    """
    if found:
        missing = [name for name in ("rank", "world") if name not in found]
        if missing or ("address" not in found and not options.controllers):
            raise BadOption(f"{', '.join(missing or ['address'])} is not set: set address=, rank= and world= together.")
        return connect(**{"address": None, **found}, options=options)
    if not dist.is_available() or not dist.is_initialized():
        raise BadOption(
            "Synchronizer cannot find the other ranks: call torch.distributed.init_process_group first (any backend), "
            "or set address=, rank=, world= and secret= as for tradewind.connect."
        )
    place = _place()
    return connect_group(place, options, identify(place, options))


def choose(options: RunOptions | None, fields: Mapping[str, Any], default: RunOptions = DEFAULTS) -> RunOptions:
    """The resolved options of a Synchronizer, from arguments, environment and files; the default policy is partial."""
    resolved, _ = resolve_options(choose_options(options, cast("RunFields", fields)), default=default)
    return resolved


def _place() -> Place:
    """This rank's place in a new group of all ranks; every Synchronizer has its own run."""
    name = f"synchronizer-{next(_count)}"
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    timeout_s = dist.default_pg_timeout.total_seconds()
    size = dist.get_world_size()
    return Place(store, name, dist.get_rank(), size, tuple(range(size)), timeout_s, is_world=True)


class Synchronizer:
    """Averages this rank's model with the models of other ranks.

    Finds the other ranks through torch.distributed's store where that is initialised, with any backend; or, with
    `address`, `rank`, `world` and `secret`, as `tradewind.connect` does; or uses `group`. Set options of the run with
    `options=RunOptions(...)` or keywords (`scheme`, `policy_options`, `network`, `transport`, ...); the default policy
    is partial. All ranks start from rank 0's model; a rank that joins later starts from the model of a member.

    `preset`: a published outer optimizer by name, with its `every` (see `outer.PRESETS`; the default policy is then
    quorum). `every`: local steps per round. `optimizer`: needed by `overlap` and `average_state`. `overlap`: average
    layer by layer during the computation; the Synchronizer then takes the optimizer's steps (see `overlap.py`).
    `average_state`: also average the optimizer's state, such as momentum. `outer`: an outer optimizer (see `Outer`).
    `ensemble`: a moving average of the model (see `Ensemble`). `buffers`: also average persistent floating-point
    buffers, such as BatchNorm's. `bucket_bytes`: approximate size of a bucket. Raises `BadOption` for options that are
    invalid or exclude each other.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: str | None = None,
        planner: str | None = None,
        *,
        preset: str | None = None,
        options: RunOptions | None = None,
        group: Group | None = None,
        every: int | None = None,
        optimizer: Optimizer | None = None,
        overlap: bool = False,
        average_state: bool = False,
        outer: Outer | bool = False,
        ensemble: Ensemble | bool = False,
        buffers: bool = True,
        bucket_bytes: int | None = None,
        **fields: Any,
    ) -> None:
        published = None if preset is None else find_preset(preset)
        if published is not None:
            outer, every = outer or published.outer, every or published.every
        every = 1 if every is None else every
        check_arguments(every, optimizer, overlap, average_state, outer)
        tracked = tracked_tensors(model, buffers)
        self._owns_group = group is None
        found = {name: fields.pop(name) for name in FINDING if name in fields}
        fields |= {name: of for name, of in (("policy", policy), ("planner", planner)) if of is not None}
        run_options = choose(options, fields, DEFAULTS if published is None else OUTER_DEFAULTS)
        self.group = join(run_options, found) if group is None else group
        self.model, self.optimizer, self.every = model, optimizer, every
        self.iteration = 0
        """Number of local steps so far."""
        self.rounds = 0
        """Number of rounds so far that had other contributors."""
        self.last: Outcome | None = None
        """Outcome of the last round."""
        self._averager = Averager()
        self._blocked_s = 0.0
        self._tokens = 0.0
        """What the local steps since the last round have processed."""
        self._anchored = frozenset(t.name for t in tracked if t.trained and outer)
        """Parameters of which ranks that join get the anchors instead."""
        offered = start_from_others(self.group, model, self._anchored)
        self._tracked, self._average_state = tracked, average_state
        self._outer: OuterSteps | None = None
        if outer:
            chosen = outer if isinstance(outer, Outer) else Outer()
            trained = [t for t in tracked if t.trained]
            self._outer = OuterSteps(chosen, trained, every, run_options.policy in COMMON_POLICIES, bucket_bytes)
            self._start_outer(self._outer, offered)
            tracked = [t for t in tracked if not t.trained]
        self.group.offer_state(self._offer, None if self._outer is None else self._outer.newest)
        self._buckets = pack(tracked, BUCKET_BYTES if overlap and bucket_bytes is None else bucket_bytes)
        if self.group.has_server and self._outer is None:
            self._fetch_model()
        self._ensemble: MovingAverage | None = None
        if ensemble:
            averaged = ensemble if isinstance(ensemble, Ensemble) else Ensemble()
            self._ensemble = MovingAverage(averaged, self._buckets if overlap else pack(self._tracked))
        self._overlap: LayerwiseOverlap | None = None
        if overlap:
            assert optimizer is not None
            self._overlap = LayerwiseOverlap(model, optimizer, self._buckets, self._send, self._arrived)
            self._overlap.sending = self._due

    def _start_outer(self, outer: OuterSteps, offered: memoryview | None) -> None:
        """Number the model that all ranks start from; a rank that joins later takes over a member's state instead."""
        if offered is None:
            outer.number = int(self.group.all_reduce(np.array([self.group.model]), "max")[0])
        else:
            outer.number = -1  # older than any
            outer.take_over(offered)
            outer.restart()
            self.iteration = outer.round * outer.interval
        self.group.model = outer.number

    def _offer(self) -> memoryview:
        """The current model, for ranks that join; with an outer optimizer its state, which is the same on all ranks."""
        # A model read during training may mix two steps: these differ no more than the models of two ranks do.
        model = packed(self.model, self._anchored).numpy().data
        return model if self._outer is None else memoryview(bytes(model) + self._outer.offer())

    # --- steps -----------------------------------------------------------------------------------------------------

    @property
    def _due(self) -> bool:
        """Whether the current step ends with a round."""
        return (self.iteration + 1) % (self.every if self._outer is None else self._outer.interval) == 0

    def step(self, tokens: float = 0.0) -> Outcome | None:
        """End a local step, and average the model if a round is due.

        `tokens`: how much this step has processed, in any unit, such as tokens or samples; the contributions of ranks
        to a mean are weighed by it (not with `overlap`). Returns the round's outcome; None if no round was due. With
        `overlap`, or a delayed outer optimizer, the averaging of this step is still running: returns the outcome of the
        last round that has ended (with an outer optimizer: in this step).
        """
        if self._overlap is not None:
            return self._step_overlapped(self._overlap)
        if self._outer is not None:
            outcome = self._outer_step(self._outer, tokens)
        else:
            self._tokens += tokens
            outcome = self._average() if self._due else None
        self.iteration += 1
        for k in range(0 if self._ensemble is None else len(self._ensemble.buckets)):
            self._arrived(k, self.iteration)
        return outcome

    def wait(self) -> Outcome | None:
        """Wait until the model holds all averages that are under way; returns the outcome of the last round."""
        if self._outer is not None:
            self._land(self._outer, [f for f in self._outer.fragments if f.flight is not None])
        if self._overlap is not None and (handles := self._overlap.wait()):
            self._ended(merged([handle.outcome for handle in handles]))
        return self.last

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """With `overlap`, a context in which backward passes only accumulate gradients (gradient accumulation)."""
        with contextlib.nullcontext() if self._overlap is None else self._overlap.pause():
            yield

    @property
    def pending(self) -> int:
        """How many parts of the model are being averaged, or wait for the layer or the step that needs them."""
        flights = [] if self._outer is None else [f for f in self._outer.fragments if f.flight is not None]
        return len(flights) if self._overlap is None else self._overlap.pending

    @property
    def blocked_s(self) -> float:
        """With `overlap` or `outer`, the total time spent waiting for averages, in seconds; otherwise 0."""
        return self._blocked_s if self._overlap is None else self._overlap.blocked_s

    def _average(self) -> Outcome:
        """Average all buckets, as the parts of one step."""
        buckets = [*self._buckets, *self._state_buckets()]
        for bucket in buckets:
            bucket.gather()
        handles = self._submit_all([Sent(bucket.flat) for bucket in buckets], Share(self._tokens or 1.0))
        for handle in handles:
            handle.wait()
        self._tokens = 0.0
        for bucket in buckets:
            bucket.scatter()
        return self._ended(merged([handle.outcome for handle in handles]))

    # --- the outer optimizer ---------------------------------------------------------------------------------------

    def _outer_step(self, outer: OuterSteps, tokens: float) -> Outcome | None:
        """End a local step: use results whose time has come, and start the round of a fragment if one is due."""
        outer.processed(tokens)
        step = self.iteration + 1
        ended = self._land(outer, [f for f in outer.fragments if f.flight is not None and f.flight.due <= step])
        if self._due:
            beside = [*self._buckets, *self._state_buckets()]
            begun = outer.begin(self._submit_outer, step, self.group.world, beside)
            if outer.options.delay == 0:
                ended = self._land(outer, [begun])
        return ended

    def _submit_outer(self, sent: list[Sent], weight: float) -> list[Pending]:
        assert self._outer is not None
        return self._submit_all(sent, Share(weight, self._outer.number if self._outer.common else None))

    def _land(self, outer: OuterSteps, fragments: Sequence[Fragment]) -> Outcome | None:
        """Use the results of these fragments' rounds; returns the last outcome, None if there is none."""
        ended = None
        for fragment in fragments:
            started_s = time.perf_counter()
            is_alone = self.group.world == 1
            outcomes = outer.end(fragment, is_alone)
            self._blocked_s += time.perf_counter() - started_s
            self.group.model = outer.number
            ended = self._ended(merged(outcomes))
            if ended.alone and not is_alone and outer.common:
                self._catch_up(outer)
        return ended

    def _catch_up(self, outer: OuterSteps) -> None:
        """Take over the state of a rank that is ahead, after a round that this rank was not in."""
        fetched = self.group.fetch_state(newer_than=outer.number)
        if fetched is not None:
            outer.take_over(memoryview(fetched.data)[len(packed(self.model, self._anchored)) :])
            self.group.model = outer.number
            log.info("%s missed a round, and continues from the anchors of others", self.group.name)

    # --- rounds -------------------------------------------------------------------------------------------------

    def _fetch_model(self) -> None:
        """Exchange once with the server: it starts from the model of the first rank, which the others receive."""
        for bucket in self._buckets:
            bucket.gather()
        for handle in [self._send(k, bucket) for k, bucket in enumerate(self._buckets)]:
            handle.wait()
        for bucket in self._buckets:
            bucket.scatter()

    def _submit(self, sent: Sent, part: int, parts: int, share: Share | None = None) -> Pending:
        residual = None if sent.residual is None else sent.residual.numpy()
        how: dict[str, Any] = {"dtype": str(sent.flat.dtype).removeprefix("torch."), "part": part, "parts": parts}
        how |= {"share": share, "codec": sent.codec, "residual": residual}
        return self._averager.average(sent.flat, lambda array: self.group.average_async(array, out=array, **how))

    def _submit_all(self, sent: Sequence[Sent], share: Share | None = None) -> list[Pending]:
        return [self._submit(each, k, len(sent), share) for k, each in enumerate(sent)]

    def _send(self, k: int, bucket: Bucket) -> Pending:
        return self._submit(Sent(bucket.flat), k, len(self._buckets))

    def _step_overlapped(self, overlap: LayerwiseOverlap) -> Outcome | None:
        if handles := overlap.end_step():
            self._ended(merged([handle.outcome for handle in handles]))
        self.iteration += 1
        overlap.sending = self._due
        return self.last

    def _arrived(self, k: int, step: int) -> None:
        if self._ensemble is not None:
            self._ensemble.update(k, step)

    def _ended(self, outcome: Outcome) -> Outcome:
        self.rounds += not outcome.alone
        self.last = outcome
        return outcome

    def _state_buckets(self) -> list[Bucket]:
        """Buckets of the optimizer's state tensors that have their parameter's shape, such as momentum."""
        if not self._average_state:
            return []
        assert self.optimizer is not None
        found = [
            Tracked(f"{t.name}.{key}", value, False)
            for t in self._tracked
            if t.trained
            for key, value in sorted(self.optimizer.state.get(t.tensor, {}).items())
            if isinstance(value, Tensor) and value.shape == t.tensor.shape and value.is_floating_point()
        ]
        return pack(found) if found else []

    # --- finishing and checkpoints ------------------------------------------------------------------------------

    def finish(self) -> Outcome:
        """Average the models of all ranks, or with `ensemble` their moving averages; all ranks get the result.

        A rank that takes fewer steps waits here for the others, which continue without it. Returns the outcome.
        """
        self.wait()
        ensemble = self._ensemble if self._ensemble is not None and all(self._ensemble.counts) else None
        buckets = pack(self._tracked) if ensemble is None else ensemble.buckets
        handles = []
        for k, bucket in enumerate(buckets):
            if ensemble is None:
                bucket.gather()
            else:
                bucket.flat.copy_(ensemble.averages[k])
            handles.append(self._averager.average(bucket.flat, partial(self._mean, dtype=bucket.dtype_name)))
        for handle, bucket in zip(handles, buckets, strict=True):
            handle.wait()
            bucket.scatter()
        return merged([handle.outcome for handle in handles])

    def _mean(self, array: Array, dtype: str) -> Handle:
        return self.group.all_reduce_async(array, "mean", out=array, dtype=dtype, codec="none")

    def state_dict(self) -> dict[str, Any]:
        """The Synchronizer's state for a checkpoint; save the model's and the optimizer's state beside it."""
        if self._outer is None:
            self.wait()
        return {
            "iteration": self.iteration,
            "rounds": self.rounds,
            "outer": None if self._outer is None else self._outer.state_dict(),
            "ensemble": None if self._ensemble is None else self._ensemble.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of `state_dict`; load the model's and the optimizer's state beside it.

        Raises `BadOption` if only one of the checkpoint and this Synchronizer uses `outer` (or `ensemble`).
        """
        for name, own in (("outer", self._outer), ("ensemble", self._ensemble)):
            if (state[name] is None) != (own is None):
                has, had = ("without", "with") if own is None else ("with", "without")
                raise BadOption(
                    f"this Synchronizer was created {has} {name}=, but the checkpoint was saved {had} it. Create it "
                    f"{had} {name}= to load this checkpoint."
                )
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"], self._buckets)
        if self._ensemble is not None:
            self._ensemble.load_state_dict(state["ensemble"])
        self.iteration, self.rounds = int(state["iteration"]), int(state["rounds"])
        if self._overlap is not None:
            self._overlap.step, self._overlap.sending = self.iteration + 1, self._due

    def close(self) -> None:
        """Remove the hooks from the model, and leave the run unless `group` was passed in."""
        if self._overlap is not None:
            self._overlap.remove()
        self.group.offer_state(None)
        self._averager.close()
        if self._owns_group:
            self.group.close()

    def __enter__(self) -> Synchronizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_arguments(
    every: int, optimizer: Optimizer | None, overlap: bool, average_state: bool, outer: Outer | bool
) -> None:
    """Raise `BadOption` for arguments of a Synchronizer that are invalid or exclude each other."""
    if every < 1:
        raise BadOption(f"every must be at least 1 local step, got {every}.")
    if (overlap or average_state) and optimizer is None:
        raise BadOption("overlap and average_state need the optimizer: set optimizer= as well.")
    if overlap and (outer or average_state):
        raise BadOption("overlap=True cannot be combined with outer or average_state: remove one of them.")
    if average_state and isinstance(outer, Outer) and outer.delay != 0:
        raise BadOption("average_state needs an outer optimizer with delay=0: remove one of them.")


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a step from those of its parts: total bytes, and time from the first start to the last end."""
    waited_s = min(o.waited_s for o in outcomes)
    over_s = max(o.waited_s + o.seconds for o in outcomes)
    first = outcomes[0]
    return replace(first, nbytes=sum(o.nbytes for o in outcomes), waited_s=waited_s, seconds=over_s - waited_s)
