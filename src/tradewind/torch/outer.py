"""Outer optimizers on top of rounds: many local steps, then one outer step along their sum.

With anchor a (the model after the last outer step) and local model x, the pseudo-gradient is g = a - x. Averaged over a
round's members it drives Nesterov's momentum:

    v <- mu v + g        a <- a - lr (g + mu v)

The model is cut into *fragments*, groups of layers, whose rounds come in turn: round r is about fragment r modulo their
number. What happens around a round of a fragment depends on `Outer.delay`:

    0            DiLoCo: the rank waits for the average, and continues from the new anchor
    tau steps    Streaming DiLoCo: it continues from x; tau steps later x <- mix x + (1 - mix) a
    None         delayed: it continues from a, and uses the average when the fragment's next round is due; the next
                 pseudo-gradient counts from where it continued. `eager` adds the own part of the average at once

SparseLoCo is DiLoCo without momentum (mu = 0), with a sparse codec and `feedback`: what is not sent of a contribution
is kept at the rank, decays, and is in the next one, which takes the place of the momentum.

**One model, numbered.** Under `bsp` and `quorum` all anchors and momenta are equal: they are functions of the averages
of all rounds so far, and every receiver of a round has the same bits. They are numbered by these rounds, a contribution
says which number it is relative to, and only contributions to the same number are averaged (`policy.machine`). A rank
that has missed a round takes over another rank's anchors and momenta, and keeps what it has trained since: its model
moves with the anchor. A contribution that was in no round is in the next one, and none is in two.

**Residuals when membership changes.** What a rank has not sent is progress that it alone has made, in units of its own
contribution, so it stays valid when others leave or join, and is kept. A rank that joins, or joins again, starts with
none. (DDP's residuals, which are rounding errors, are reset on all ranks: `torch.compression`.)

**Under any other policy** anchors differ, and averaging only g would leave the members' models different. But a and v
after the step are linear in a, v and g before it, so each member takes the step with its own g, and the round averages
a and v: the result is exactly the step from the members' mean anchor, at twice the bytes. Only DiLoCo without fragments
and delay works so.
"""

from __future__ import annotations

import math
import re
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tradewind.errors import BadArray, BadOption
from tradewind.node.actions import Outcome
from tradewind.torch.averaging import Pending
from tradewind.torch.buckets import Bucket, Tracked, pack
from tradewind.wire.codecs import check_codec

LAYERS_PER_FRAGMENT = 3
"""Layers of a fragment where their number is not given, as in Streaming DiLoCo."""
COMMON_POLICIES = ("bsp", "quorum")
"""Policies under which all ranks have the same anchors and momenta."""
_HEADER = struct.Struct("!QQ")


@dataclass(frozen=True)
class Outer:
    """Options of the outer step; the defaults are DiLoCo's. Raises `BadOption` for values out of range."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    fragments: int | None = 1
    """Number of parts of the model that are synchronised in turn; None: one for every three layers."""
    delay: int | None = 0
    """Local steps that overlap with a round (tau); None: all until the fragment's next round (delayed DiLoCo)."""
    mix: float = 0.0
    """Weight of the local model when a delayed average is used (alpha)."""
    eager: bool = False
    """Whether, with delay=None, a rank adds its own part of the average before the average is there."""
    codec: str | None = None
    """How pseudo-gradients are encoded (docs/guides/compression.md); None: as the run's option `codec` says."""
    feedback: float = 0.0
    """What is kept of the loss of encoding for the next contribution: 1 is error feedback, 0 none."""

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf or not 0 <= self.momentum < 1:
            raise BadOption(
                f"Outer: lr must be finite and above 0, and momentum in [0, 1), got lr={self.lr}, "
                f"momentum={self.momentum}."
            )
        if (self.fragments is not None and self.fragments < 1) or (self.delay or 0) < 0 or not 0 <= self.mix <= 1:
            raise BadOption(
                "Outer: fragments must be at least 1, delay at least 0 and mix in [0, 1], got "
                f"fragments={self.fragments}, delay={self.delay}, mix={self.mix}."
            )
        if self.eager and self.delay is not None:
            raise BadOption(
                f"Outer: eager needs delay=None, got delay={self.delay}. Set delay=None, or leave eager out."
            )
        if self.codec is not None:
            check_codec(self.codec)
        if not 0 <= self.feedback <= 1 or (self.feedback and self.delay):
            raise BadOption(
                f"Outer: feedback must be in [0, 1], and needs delay=0 or None, got feedback={self.feedback}, "
                f"delay={self.delay}."
            )
        if self.delay is None and self.fragments != 1:
            raise BadOption(
                f"Outer: delay=None needs fragments=1, got fragments={self.fragments}: only one round runs at a time. "
                "Set a number of steps as delay."
            )

    def direction(self, gradient: Tensor, momentum: Tensor) -> Tensor:
        """The direction of the outer step, given the momentum already updated with this gradient."""
        return gradient + self.momentum * momentum if self.nesterov else momentum

    @property
    def needs_common(self) -> bool:
        """Whether all ranks must have the same anchors: averaging anchors as well does not work with these options."""
        return self.fragments != 1 or self.delay != 0 or self.codec is not None or self.feedback > 0


@dataclass(frozen=True)
class Preset:
    """A named outer optimizer: its options, and the number of local steps between rounds of a fragment (H)."""

    outer: Outer
    every: int
    source: str
    """The paper, or the measurement, that the values are from."""


PRESETS: dict[str, Preset] = {
    "diloco": Preset(
        Outer(lr=0.7, momentum=0.9),
        500,
        "DiLoCo: Distributed Low-Communication Training of Language Models (Douillard et al. 2023, arXiv 2311.08105)",
    ),
    "streaming-diloco": Preset(
        Outer(lr=0.4, momentum=0.9, fragments=None, delay=5, mix=0.5, codec="int4"),
        100,
        "Streaming DiLoCo with overlapping communication (Douillard et al. 2025, arXiv 2501.18512)",
    ),
    "sparseloco": Preset(
        Outer(lr=1.0, momentum=0.0, nesterov=False, codec="topk", feedback=0.95),
        30,
        "Communication Efficient LLM Pre-training with SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706)",
    ),
    "sparseloco-256": Preset(
        Outer(lr=2.0, momentum=0.0, nesterov=False, codec="topk-256", feedback=0.95),
        5,
        "SparseLoCo with four times as many items, more often, and a larger outer step: what lost least in our runs "
        "(docs/benchmarks/compression_evidence.md)",
    ),
    "delayed-diloco": Preset(
        Outer(lr=0.7, momentum=0.9, delay=None),
        500,
        "Eager Updates For Overlapped Communication and Computation in DiLoCo (Kale et al. 2025, arXiv 2502.12996), "
        "its delayed form",
    ),
    "eager-diloco": Preset(
        Outer(lr=0.7, momentum=0.9, delay=None, eager=True),
        500,
        "Eager Updates For Overlapped Communication and Computation in DiLoCo (Kale et al. 2025, arXiv 2502.12996)",
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises `BadOption` for an unknown one."""
    if name not in PRESETS:
        raise BadOption(f"preset must be one of {', '.join(sorted(PRESETS))}, got {name!r}.")
    return PRESETS[name]


def layers_of(tracked: Sequence[Tracked]) -> list[list[Tracked]]:
    """The tensors of each layer, in order: of one member of a list of modules, or of one module at the top."""
    layers: dict[str, list[Tracked]] = {}
    for item in tracked:
        path = item.name.rpartition(".")[0]
        numbered = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", path)
        layers.setdefault(numbered.group() if numbered else path.partition(".")[0], []).append(item)
    return list(layers.values())


def cut_fragments(tracked: Sequence[Tracked], count: int | None) -> list[list[Tracked]]:
    """The tensors of each fragment: whole layers, in fragments of about equal size that are spread over the depth.

    The largest layers are placed first, each in the smallest fragment so far. Raises `BadOption` if there are more
    fragments than layers.
    """
    layers = layers_of(tracked)
    wanted = max(1, len(layers) // LAYERS_PER_FRAGMENT) if count is None else count
    if wanted > len(layers):
        raise BadOption(f"Outer: fragments must be at most {len(layers)}, the number of layers, got {wanted}.")
    sizes = [0] * wanted
    of: list[list[int]] = [[] for _ in range(wanted)]
    for k in sorted(range(len(layers)), key=lambda k: (-_nbytes(layers[k]), k)):
        least = min(range(wanted), key=lambda number: (sizes[number], number))
        sizes[least] += _nbytes(layers[k])
        of[least].append(k)
    return [[item for k in sorted(numbers) for item in layers[k]] for numbers in of]


def _nbytes(layer: Sequence[Tracked]) -> int:
    return sum(item.tensor.numel() * item.tensor.element_size() for item in layer)


@dataclass
class Flight:
    """A round of a fragment whose result has not been used."""

    due: int
    """The local step at whose end its result is used."""
    tokens: float
    """What its contribution is weighed by."""
    handles: list[Pending] = field(default_factory=list)
    beside: Sequence[Bucket] = ()
    """Buckets that are averaged as well, without an outer step: buffers, and state of the optimizer."""
    outcomes: list[Outcome] = field(default_factory=list)
    """The outcome of each of its operations, once they are known."""

    def landed(self) -> list[Outcome]:
        """Wait for the operations, and return their outcomes."""
        self.outcomes += [handle.outcome for handle in self.handles]
        self.handles = []
        return self.outcomes


class Fragment:
    """The state of one fragment, by bucket: anchors and momenta, and with `delay=None` what else that needs."""

    def __init__(self, buckets: Sequence[Bucket], options: Outer, common: bool) -> None:
        self.buckets = list(buckets)
        self.anchors = [torch.empty_like(bucket.flat) for bucket in buckets]
        self.momenta = [torch.zeros_like(bucket.flat) for bucket in buckets]
        self.steps = [] if common else [torch.empty_like(bucket.flat) for bucket in buckets]
        """The next momenta, under policies that average them."""
        is_delayed = options.delay is None
        self.starts = [torch.empty_like(bucket.flat) for bucket in buckets] if is_delayed else []
        """The models from which local steps continued after the last round."""
        self.carried = [torch.zeros_like(bucket.flat) for bucket in buckets] if is_delayed else []
        """Contributions that were in no round, for the next one."""
        self.residuals = [torch.zeros(len(bucket.flat)) for bucket in buckets] if options.feedback else []
        """What encoding has lost of contributions."""
        self.flight: Flight | None = None
        self.tokens = 0.0
        """Tokens processed since the last contribution that was in a round."""
        for k, bucket in enumerate(self.buckets):
            bucket.gather(self.anchors[k])
            if is_delayed:
                bucket.gather(self.starts[k])

    def tensors(self) -> dict[str, list[Tensor]]:
        """The tensors of a checkpoint, by name."""
        local = {"starts": self.starts, "carried": self.carried, "residuals": self.residuals}
        return {"anchors": self.anchors, "momenta": self.momenta, **local}


class Sent(NamedTuple):
    """A flat tensor that is averaged in place, and how it is encoded."""

    flat: Tensor
    codec: str | None = None
    """None: as the run's option says."""
    residual: Tensor | None = None
    """What encoding lost before; it is added, and replaced by what is lost now."""


Submit = Callable[[list[Sent], float], list[Pending]]
"""Starts the averaging of flat tensors in place, as one step with this weight; returns their handles."""


class OuterSteps:
    """The outer optimizer of one rank: its fragments, whose turn it is, and the number of the common model."""

    def __init__(self, options: Outer, trained: Sequence[Tracked], every: int, common: bool, bucket_bytes: int | None):
        self.options, self.common = options, common
        groups = cut_fragments(trained, options.fragments)
        self.fragments = [Fragment(pack(group, bucket_bytes, exact=True), options, common) for group in groups]
        self.interval = max(1, every // len(groups))
        """Local steps between two rounds."""
        if options.delay is not None and options.delay > self.interval:
            raise BadOption(
                f"Outer: delay must be at most every / fragments = {self.interval} local steps, so that one round runs "
                f"at a time, got {options.delay}. Use fewer fragments, a larger every, or a smaller delay."
            )
        if options.needs_common and not common:
            raise BadOption(
                f"Outer: fragments and delay need a policy that gives all ranks the same rounds: expected one of "
                f"{', '.join(COMMON_POLICIES)}. Set policy='quorum'."
            )
        self.round = 0
        """Number of rounds so far that this rank knows of; it says whose turn it is."""
        self.number = 0
        """Number of the common model in this run: one more after every round."""
        self._lock = threading.Lock()

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of all fragments."""
        return [bucket for fragment in self.fragments for bucket in fragment.buckets]

    @property
    def turn(self) -> Fragment:
        """The fragment whose round is next."""
        return self.fragments[self.round % len(self.fragments)]

    def processed(self, tokens: float) -> None:
        """Count tokens, or whatever contributions are weighed by, of a local step."""
        for fragment in self.fragments:
            fragment.tokens += tokens

    # --- one round of a fragment ------------------------------------------------------------------------------------

    def begin(self, submit: Submit, step: int, world: int, beside: Sequence[Bucket] = ()) -> Fragment:
        """Start the round of the fragment whose turn it is, at the end of local step `step`.

        The buckets `beside` are averaged in the same round, without an outer step.
        """
        fragment, options = self.turn, self.options
        assert fragment.flight is None
        for k, bucket in enumerate(fragment.buckets):
            bucket.gather()
            base = fragment.starts[k] if options.delay is None else fragment.anchors[k]
            torch.sub(base, bucket.flat, out=bucket.flat)
            if options.delay is None:
                bucket.flat += fragment.carried[k]
                fragment.carried[k].zero_()
        sent = [Sent(bucket.flat, options.codec) for bucket in fragment.buckets]
        if options.feedback:
            for k, residual in enumerate(fragment.residuals):
                sent[k] = Sent(sent[k].flat, options.codec, residual.mul_(options.feedback))
        if not self.common:
            sent = [Sent(flat, "none") for flat in self._own_steps(fragment)]
        elif options.delay is None:
            self._continue_from_anchors(fragment, world)
        tokens = fragment.tokens
        due = step + (self.interval * len(self.fragments) if options.delay is None else options.delay)
        for bucket in beside:
            bucket.gather()
        sent += [Sent(bucket.flat, "none") for bucket in beside]
        fragment.flight = Flight(due, tokens, submit(sent, tokens or 1.0), beside)
        return fragment

    def _own_steps(self, fragment: Fragment) -> list[Tensor]:
        """Take the step with the own gradient; returns the anchors and momenta to be averaged."""
        given: list[Tensor] = []
        for k, bucket in enumerate(fragment.buckets):
            # The next momentum and anchor are written to separate memory, because this round may fail.
            momentum = torch.add(bucket.flat, fragment.momenta[k], alpha=self.options.momentum, out=fragment.steps[k])
            step = self.options.direction(bucket.flat, momentum)
            bucket.flat.copy_(fragment.anchors[k]).sub_(step, alpha=self.options.lr)
            given += [bucket.flat, momentum]
        return given

    def _continue_from_anchors(self, fragment: Fragment, world: int) -> None:
        """Let the local model continue from the anchor while a round runs; if eager, with the own part of the average.

        The own part enters the outer step that was just taken, as in the paper; but the anchor and the momentum do not
        keep it, because they are common to all ranks: the average that comes replaces it.
        """
        factor = 1.0 + self.options.momentum if self.options.nesterov else 1.0
        for k, bucket in enumerate(fragment.buckets):
            start = fragment.starts[k].copy_(fragment.anchors[k])
            if self.options.eager:
                start.sub_(bucket.flat, alpha=self.options.lr * factor / world)
            bucket.scatter(start)

    def end(self, fragment: Fragment, alone: bool) -> list[Outcome]:
        """Use the result of a fragment's round: take the outer step, and bring it into the model.

        `alone`: whether there is no other rank, so that the own contribution is the average. Returns the outcomes of
        all operations; where they are `alone` and there are other ranks, the contribution stays for the next round.
        """
        flight, fragment.flight = fragment.flight, None
        assert flight is not None
        outcomes = flight.landed()
        per_bucket = 1 if self.common else 2
        with self._lock:
            for k, bucket in enumerate(fragment.buckets):
                own = outcomes[per_bucket * k : per_bucket * (k + 1)]
                if alone or not any(outcome.alone for outcome in own):
                    self._apply(fragment, k, bucket)
                elif self.options.delay is None:
                    fragment.carried[k] += bucket.flat
                elif self.options.feedback:  # what was added to the pseudo-gradient, which is computed again
                    local = torch.empty_like(bucket.flat)
                    bucket.gather(local)
                    fragment.residuals[k].copy_(bucket.flat - (fragment.anchors[k] - local))
            if not any(outcome.alone for outcome in outcomes):
                for bucket in flight.beside:
                    bucket.scatter()
            if alone or not all(outcome.alone for outcome in outcomes):
                self.round += 1
                self.number += 1
                fragment.tokens -= flight.tokens
        return outcomes

    def _apply(self, fragment: Fragment, k: int, bucket: Bucket) -> None:
        anchor, momentum = fragment.anchors[k], fragment.momenta[k]
        if not self.common:
            anchor.copy_(bucket.flat)
            momentum.copy_(fragment.steps[k])
        else:
            momentum.mul_(self.options.momentum).add_(bucket.flat)
            anchor.sub_(self.options.direction(bucket.flat, momentum), alpha=self.options.lr)
        if self.options.delay is None:
            return  # the local model continues from it when the next round begins
        if self.options.mix:
            bucket.gather()
            bucket.scatter(torch.lerp(anchor, bucket.flat, self.options.mix))
        else:
            bucket.scatter(anchor)

    # --- state ----------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """The number of the state that `offer` would return."""
        return self.number

    def offer(self) -> bytes:
        """The common state for another rank, the same bytes on all ranks: number, turn, anchors and momenta."""
        with self._lock:
            parts = [_HEADER.pack(self.number, self.round)]
            for device in sorted({tensor.device for tensor in self._common() if tensor.is_cuda}, key=str):
                torch.cuda.synchronize(device)  # this thread's stream is not that of the last outer step
            parts += [tensor.cpu().numpy().tobytes() for tensor in self._common()]
        return b"".join(parts)

    @property
    def offer_bytes(self) -> int:
        """Size of `offer`."""
        return _HEADER.size + sum(int(tensor.nbytes) for tensor in self._common())

    def take_over(self, offered: bytes | bytearray | memoryview) -> None:
        """Take over another rank's state if it is newer, and move the local model with the anchors.

        Raises `BadArray` if the sizes differ.
        """
        if len(offered) != self.offer_bytes:
            raise BadArray(
                f"the state of another rank's outer optimizer has {len(offered)} bytes, this rank's has "
                f"{self.offer_bytes}. Create the same model with the same options on every rank."
            )
        number, round_ = _HEADER.unpack(offered[: _HEADER.size])
        if number <= self.number:
            return
        with self._lock:
            self.number, self.round = number, round_
            at = _HEADER.size
            before = [anchor.clone() for fragment in self.fragments for anchor in fragment.anchors]
            for tensor in self._common():
                end = at + tensor.numel() * tensor.element_size()
                tensor.copy_(torch.frombuffer(bytearray(offered[at:end]), dtype=tensor.dtype))
                at = end
        moved = iter(before)
        for fragment in self.fragments:
            for k, bucket in enumerate(fragment.buckets):
                change = fragment.anchors[k] - next(moved)
                if fragment.starts:
                    fragment.starts[k] += change
                local = torch.empty_like(change)
                bucket.gather(local)
                bucket.scatter(local + change)

    def restart(self) -> None:
        """Let the local model be the anchors, and keep nothing, as for a rank that has contributed nothing yet."""
        for fragment in self.fragments:
            for residual in fragment.residuals:
                residual.zero_()
            for k, bucket in enumerate(fragment.buckets):
                bucket.scatter(fragment.anchors[k])
                if fragment.starts:
                    fragment.starts[k].copy_(fragment.anchors[k])

    def _common(self) -> list[Tensor]:
        return [t for fragment in self.fragments for t in (*fragment.anchors, *fragment.momenta)]

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint of this rank; the result of a running round is waited for, but not used yet."""
        fragments = []
        for fragment in self.fragments:
            flight = fragment.flight
            state: dict[str, Any] = {**fragment.tensors(), "tokens": fragment.tokens, "flight": None}
            if flight is not None:
                alone = [outcome.alone for outcome in flight.landed()]
                results = [bucket.flat.clone() for bucket in (*fragment.buckets, *flight.beside)]
                state["flight"] = {"due": flight.due, "tokens": flight.tokens, "alone": alone, "results": results}
            fragments.append(state)
        return {"round": self.round, "fragments": fragments}

    def load_state_dict(self, state: dict[str, Any], beside: Sequence[Bucket] = ()) -> None:
        """Restore a checkpoint of the same model with the same options; `beside` as for `begin`."""
        self.round = int(state["round"])
        for fragment, saved in zip(self.fragments, state["fragments"], strict=True):
            for name, own in fragment.tensors().items():
                for there, here in zip(saved[name], own, strict=True):
                    here.copy_(there)
            fragment.tokens, fragment.flight = float(saved["tokens"]), None
            if (flight := saved["flight"]) is not None:
                outcomes = [Outcome((), (), (), 0, round=None if alone else 0) for alone in flight["alone"]]
                fragment.flight = Flight(int(flight["due"]), float(flight["tokens"]), [], beside, outcomes)
                for bucket, result in zip((*fragment.buckets, *beside), flight["results"], strict=True):
                    bucket.flat.copy_(result)
