"""Records the events of a simulation as a trace, and counts bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tradewind.control.plans.records import network_records, plan_records, used_link_records
from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.sim.fluid.flows import PHASES, UNKNOWN_ROUND, Flow
from tradewind.trace.records import Kind, Record, Trace

Detail = Literal["nothing", "rounds", "flows"]


class Recorder:
    """Keeps the records that the level of detail asks for, and the counts."""

    def __init__(self, network: Network, detail: Detail) -> None:
        self._names = network.names
        self._records: list[Record] = []
        self._early: list[Flow] = []
        self.keeps_rounds = detail != "nothing"
        self.keeps_flows = detail == "flows"
        self._versions: set[int] = set()
        self._network: Network | None = None
        self._links: set[tuple[str, str]] = set()
        """Links of a large network that are recorded."""

    def flow_over(self, flow: Flow) -> None:
        """Record a flow that has ended, with whatever outcome."""
        if flow.round == UNKNOWN_ROUND:
            self._early.append(flow)  # its round is not known yet
        else:
            self._records.append(self._flow_record(flow))

    def _flow_record(self, flow: Flow) -> Record:
        return Record(
            "flow",
            flow.queued_s,
            flow.end_s,
            self._names[flow.line.src],
            self._names[flow.line.dst],
            None if flow.round == UNKNOWN_ROUND else flow.round,
            None,
            flow.shard,
            PHASES[flow.phase],
            flow.start_s,
            flow.bits / 8.0,
            flow.sent_bits / 8.0,
            (),
            flow.outcome,
        )

    def given(self, network: Network) -> None:
        """Record the rates of all links, where flows are recorded, too."""
        if self.keeps_flows:
            self._network = network
            self._records += network_records(network, 0.0)

    def planned(self, version: int, plan: Plan, now_s: float) -> None:
        """Record a plan, when it is sent to the first rank."""
        if self.keeps_flows and version not in self._versions:
            self._versions.add(version)
            self._records += plan_records(version, plan, now_s)
            if self._network is not None:
                self._records += used_link_records(self._network, plan, self._links, now_s)

    def add(
        self,
        kind: Kind,
        start_s: float,
        end_s: float,
        site: str = "",
        peer: str = "",
        *,
        round_number: int | None = None,
        step: int | None = None,
        phase: str = "",
        nbytes: float = 0,
        members: Iterable[str] = (),
        outcome: str = "",
        reason: str = "",
    ) -> None:
        """Record an event that is not a flow."""
        if self.keeps_rounds:
            self._records.append(
                Record(
                    kind,
                    start_s,
                    end_s,
                    site,
                    peer,
                    round_number,
                    step,
                    phase=phase,
                    nbytes=nbytes,
                    members=tuple(members),
                    outcome=outcome,
                    reason=reason,
                )
            )

    def counted(self, records: Iterable[Record]) -> None:
        """Add records of the hosts' counters."""
        self._records += records

    def trace(self) -> Trace | None:
        """All records in order of time; None if the detail is "nothing"."""
        if not self.keeps_rounds:
            return None
        return Trace.of([*self._records, *map(self._flow_record, self._early)])
