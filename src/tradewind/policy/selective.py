"""Selective reduce: wait a moment for the right workers, and group those of a kind.

Algorithm 3 with the errata. Whenever a worker becomes ready, or the horizon has passed since something happened, the
ready workers are split into groups of similar bandwidth, and each group starts or waits for better company. The rounds
started are counted, full ones too; when the count passes a multiple of `full_every`, the next round takes everybody, so
that workers that never meet cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.bandwidth import WorkerBandwidth
from tradewind.policy.events import Event, LinkLost, LinkMeasured, RoundFinished, WorkerJoined, WorkerReady
from tradewind.policy.grouping import (
    Candidate,
    Group,
    Prospect,
    Wait,
    WaitAndReplace,
    group_by_bandwidth,
    judge_waiting,
    least_acceptable_bps,
)
from tradewind.policy.machine import Machine
from tradewind.policy.partial import WeightRule, resolve_scale
from tradewind.policy.readiness import LearntReadiness, ProbabilityForm, ReadinessModel, ready_soon
from tradewind.policy.roster import Phase, Running
from tradewind.policy.weights import staleness_weights

SIZE_MEMORY = 0.8
"""How much of the estimated transfer size is kept when another round has been timed."""


@dataclass(frozen=True)
class SelectiveOptions:
    """The paper's parameters by their meaning, and ours."""

    p: int | None = None
    """Smallest scale of a round; None: 0.3 of the workers, as in IV-A."""
    slack: float = 0.3
    """How much slower than a group's p-th fastest its other members may be, as a share (eta)."""
    gain: float = 1.0
    """How many times the horizon waiting must save (theta)."""
    horizon_s: float = 0.1
    """How far ahead readiness is predicted, and how often a waiting group is looked at again (delta t)."""
    full_every: int = 100
    """A round of all workers after as many rounds (c); 0: never."""
    probability: ProbabilityForm = "printed"
    """The form of Eq. (4). The printed one is no conditional probability, but it waits more, and measured better."""
    value_scale: float = 0.0
    """How much a larger group is worth beside a faster one, 0 to 1; 0 is the paper."""
    nbytes: int | None = None
    """Size of what is averaged (v); None: from how long rounds take."""
    readiness: ReadinessModel | None = None
    """Distribution of step times; None: learnt from the steps seen so far."""
    weights: WeightRule = "staleness"
    """uniform, or staleness: a model s steps behind counts 1 / (1 + s) as much."""

    def __post_init__(self) -> None:
        for name, value, fits, rule in (
            ("slack", self.slack, 0 <= self.slack < 1, "at least 0 and below 1"),
            ("gain", self.gain, self.gain >= 0, "at least 0"),
            ("horizon_s", self.horizon_s, 0 < self.horizon_s < 1e9, "above zero and finite"),
            ("full_every", self.full_every, self.full_every >= 0, "at least 0"),
            ("value_scale", self.value_scale, 0 <= self.value_scale <= 1, "between 0 and 1"),
            ("nbytes", self.nbytes, self.nbytes is None or self.nbytes >= 1, "at least 1"),
        ):
            if not fits:
                raise BadOption(f"policy 'selective': {name} is {value}; it must be {rule}.")


class Selective(Machine):
    """Groups of similar bandwidth start when no better company is expected soon (Selective Reduce)."""

    name = "selective"
    reconsider: ClassVar[str] = "reconsider"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: SelectiveOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.options = options
        self.p = resolve_scale(self.name, options.p, len(workers))
        self.bandwidth = WorkerBandwidth(network, workers)
        self._candidates: dict[str, Candidate] = {}
        self._learnt = LearntReadiness()
        self._readiness = self._learnt if options.readiness is None else options.readiness
        self._nbytes = float(options.nbytes or 0)
        self._full_due = options.full_every > 0
        self._hopeful = False
        self._note = ""

    def decide(self) -> None:
        """Look at everybody who is ready."""
        self._note, self._hopeful = "", False
        if not self.proceed_if_alone():
            if self._full_due:
                self._start_full()
            else:
                self._start_groups()
        self._keep_timer()

    def note(self) -> str:
        """Why those who wait, wait."""
        return self._note

    # --- rounds ----------------------------------------------------------------------------------------

    def _start_full(self) -> None:
        live = self.roster.live_count
        if not live or len(self.roster.queue) < live:
            self._note = f"a full round is due, {len(self.roster.queue)} of {live} are ready"
            return
        self._launch(self.roster.live, f"a full round was due and all {live} are ready")

    def _start_groups(self) -> None:
        scale = min(self.p, self.roster.live_count)
        if scale < 2 or len(self.roster.queue) < scale:
            self._note = f"{len(self.roster.queue)} ready, a round takes {scale}"
            return
        o = self.options
        groups = group_by_bandwidth(map(self._candidate, self.roster.queue), scale, o.slack)
        training = self.roster.in_phase(Phase.TRAINING)
        waiting = []
        carried: tuple[Candidate, ...] = ()
        for i, found in enumerate(groups):
            group = Group(carried + found.members)
            carried = ()
            verdict = judge_waiting(
                group,
                self._prospects(training, group) if len(group.members) >= scale else (),
                p=scale,
                slack=o.slack,
                gain=o.gain,
                horizon_s=o.horizon_s,
                nbytes=self._nbytes,
                value_scale=o.value_scale,
            )
            match verdict:
                case Wait(reason):
                    waiting.append(reason)
                case WaitAndReplace(awaited, replaced, _, reason):
                    waiting.append(reason)
                    self._hopeful = True
                    training = tuple(name for name in training if name not in awaited)
                    if i + 1 < len(groups):
                        carried = tuple(member for member in group.members if member.name in replaced)
                case _:
                    self._launch(group.names, verdict.reason)
        self._note = "; ".join(waiting)

    def _launch(self, members: tuple[str, ...], reason: str) -> None:
        """Start a round, and note whether the count passed a multiple of `full_every`."""
        weights = None
        if self.options.weights == "staleness":
            weights = staleness_weights([self.roster.workers[name].progress for name in sorted(members)])
        number = self.start(members, reason, weights=weights)
        every = self.options.full_every
        if every:
            full = len(members) == self.roster.live_count
            self._full_due = (number + 1) % every == 0 or (self._full_due and not full)

    def _candidate(self, worker: str) -> Candidate:
        found = self._candidates.get(worker)
        if found is None:
            found = self._candidates[worker] = Candidate(worker, self.bandwidth.of(worker))
        return found

    def _prospects(self, training: tuple[str, ...], group: Group) -> list[Prospect]:
        """Those in training who are fast enough for the group, and how likely each of them is ready soon."""
        o, now_s, workers = self.options, self.now_s, self.roster.workers
        at_least_bps = least_acceptable_bps(group, o.slack, o.value_scale)
        return [
            Prospect(
                candidate.name,
                candidate.bandwidth_bps,
                ready_soon(self._readiness, now_s - workers[candidate.name].since_s, o.horizon_s, o.probability),
            )
            for candidate in map(self._candidate, training)
            if candidate.bandwidth_bps >= at_least_bps
        ]

    def _keep_timer(self) -> None:
        """Look again after the horizon where a group waits for better company: by then it has come, or is less likely.

        A group that is too small is not looked at again: only a ready worker can change that.
        """
        if self._hopeful:
            self.set_timer(self.reconsider, self.now_s + self.options.horizon_s, self._note)
        else:
            self.cancel_timer(self.reconsider, "nobody waits for better company")

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:
        """A full round that failed is due again."""
        if not finished and ended.scope == "all" and self.options.full_every:
            self._full_due = True

    # --- what is learnt ----------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Learn how long steps take, how fast workers are and how large the model is."""
        match event:
            case WorkerReady(worker, _):
                self._learnt.observe(self.roster.workers[worker].step_s)
            case WorkerJoined(worker):
                self.bandwidth.joined(worker)
                self._candidates.clear()
            case LinkMeasured(src, dst, bandwidth_bps):
                self.bandwidth.measured(src, dst, bandwidth_bps)
                self._candidates.clear()
            case LinkLost(src, dst):
                self.bandwidth.measured(src, dst, 0.0)
                self._candidates.clear()
            case RoundFinished(_, members, seconds) if self.options.nbytes is None:
                # Eq. (2) backwards. Where rounds do not run on rings this is the size that a ring would need to have,
                # which is what the comparison of groups wants.
                size = seconds * min(self.bandwidth.of(member) for member in members) / 16
                self._nbytes = SIZE_MEMORY * self._nbytes + (1 - SIZE_MEMORY) * size if self._nbytes else size
