"""Selective Reduce: groups of similar bandwidth that may wait a short time for faster ranks.

Algorithm 3 with the errata. After each event, and one horizon after the last one while a group waits, the ready ranks
are split into groups of similar bandwidth, and each group starts or waits for faster members. Started rounds are
counted, including full ones; when the count reaches a multiple of `full_every`, the next round has all ranks, so that
ranks that are never in the same group do not diverge.
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
"""The weight of the previous estimate of the transfer size when a new round is measured."""


@dataclass(frozen=True)
class SelectiveOptions:
    """Options of `selective`: the paper's parameters, and extensions."""

    p: int | None = None
    """The least number of ranks in a round (p); None: 0.3 of the ranks, as in IV-A."""
    slack: float = 0.3
    """How much slower than a group's p-th fastest rank its other members may be, as a fraction (eta)."""
    gain: float = 1.0
    """The time that waiting must save, in multiples of the horizon (theta)."""
    horizon_s: float = 0.1
    """Seconds ahead for which readiness is predicted, and after which a waiting group is reconsidered (delta t)."""
    full_every: int = 100
    """The number of rounds after which a round has all ranks (c); 0: never."""
    probability: ProbabilityForm = "printed"
    """The form of Eq. (4). The printed one is not a conditional probability, but waits more and measured better."""
    value_scale: float = 0.0
    """The value of a larger group relative to a faster one, 0 to 1; 0 as in the paper."""
    start_displaced: bool = False
    """Whether a group starts at once if no member of it would remain after waiting; it would gain nothing. By the
    paper's rule (no) it waits: while faster ranks are always expected, until the next round of all ranks."""
    nbytes: int | None = None
    """The size of the averaged model (v); None: estimated from the durations of rounds."""
    readiness: ReadinessModel | None = None
    """The distribution of step times (P_Phi); None: learnt from observed steps."""
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
                raise BadOption(f"policy 'selective': {name} must be {rule}, got {value}.")


class Selective(Machine):
    """Groups of similar bandwidth start when no better group is expected soon (Selective Reduce).

    Mechanism: Selective Reduce III-E Algorithm 3, full all-reduce every c rounds
    Mechanism: Selective Reduce III-E, awaited workers count for one group only (live: selective/training)
    Mechanism: Selective Reduce III-E, replaced workers go with the next group (live: selective/training)
    Mechanism: Selective Reduce III-E, a waiting group is judged again after dt (live: selective/training)
    """

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
        self._waits = False
        self._note = ""

    def decide(self) -> None:
        """Start a full round if one is due, or groups of ready ranks."""
        self._note, self._waits = "", False
        if not self.proceed_if_alone():
            if self._full_due:
                self._start_full()
            else:
                self._start_groups()
        self._keep_timer()

    def note(self) -> str:
        """Why ready ranks wait."""
        return self._note

    # --- rounds ----------------------------------------------------------------------------------------

    def _start_full(self) -> None:
        live = self.roster.live_count
        if not live or self.roster.queue_length < live:
            self._note = f"a full round is due, {self.roster.queue_length} of {live} ranks are ready"
            return
        self._launch(self.roster.live, f"a full round was due and all {live} ranks are ready")

    def _start_groups(self) -> None:
        scale = min(self.p, self.roster.live_count)
        if scale < 2 or self.roster.queue_length < scale:
            self._note = f"{self.roster.queue_length} ready, a round takes {scale}"
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
                case WaitAndReplace(replaced=replaced) if o.start_displaced and len(replaced) == len(group.members):
                    reason = "the expected ranks would form a faster group without any member of this one"
                    self._launch(group.names, reason)
                case WaitAndReplace(awaited, replaced, _, reason):
                    waiting.append(reason)
                    self._waits = True
                    training = tuple(name for name in training if name not in awaited)
                    if i + 1 < len(groups):
                        carried = tuple(member for member in group.members if member.name in replaced)
                case _:
                    self._launch(group.names, verdict.reason)
        self._note = "; ".join(waiting)

    def _launch(self, members: tuple[str, ...], reason: str) -> None:
        """Start a round, and set whether a full round is due next."""
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
        """The training ranks that are fast enough for the group, with the probability that each is ready soon."""
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
        """Set the timer that reconsiders a group waiting for faster members: after the horizon they are less likely.

        A group that is too small needs no timer: only another ready rank can change that.
        """
        if self._waits:
            self.set_timer(self.reconsider, self.now_s + self.options.horizon_s, self._note)
        else:
            self.cancel_timer(self.reconsider, "no group waits for faster members")

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:
        """Make a full round that failed due again."""
        if not finished and ended.scope == "all" and self.options.full_every:
            self._full_due = True

    # --- learning ----------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Learn the durations of steps, the bandwidths of ranks and the size of the model."""
        match event:
            case WorkerReady(worker):
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
                # Eq. (2) solved for the size. For rounds that are not rings this is the size of an equally long ring,
                # which is what the comparison of groups needs.
                size = seconds * min(self.bandwidth.of(member) for member in members) / 16
                self._nbytes = SIZE_MEMORY * self._nbytes + (1 - SIZE_MEMORY) * size if self._nbytes else size
