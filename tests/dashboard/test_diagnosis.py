"""The cause of slow rounds: seeded faults of five kinds in the simulator, and made-up facts for the rules.

`python -m benchmarks diagnosis` draws 100 faults of each kind, with seeds that no rule was made with.
"""

from __future__ import annotations

import pytest
from benchmarks.diagnosis import FAULTS, case_of, wrongly_said

from tradewind.dashboard import RunModel, diagnose
from tradewind.dashboard.diagnosis import HostFacts, LinkFacts, RoundFacts


@pytest.mark.parametrize("kind", FAULTS)
def test_the_culprit_of_a_seeded_fault_is_named_within_three_rounds(kind: str) -> None:
    assert [wrongly_said(kind, seed) for seed in range(2)] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_the_culprit_is_named_in_97_of_100_seeded_faults(kind: str) -> None:
    missed = {seed: said for seed in range(100, 200) if (said := wrongly_said(kind, seed)) is not None}
    assert len(missed) <= 3, f"{kind}: {missed}"


@pytest.mark.parametrize("seed", range(3))
def test_a_run_without_a_fault_has_no_slow_round(seed: int) -> None:
    assert not RunModel.of(case_of(seed).traced(20)).diagnoses


SLOW = LinkFacts(20e6, 100e6)


@pytest.mark.parametrize(
    ("link", "hosts", "cause", "about"),
    [
        (SLOW, {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, retransmits=40), {}, "retransmissions", "a -> b"),
        (SLOW, {"b": HostFacts(0.1, 60e6)}, "other traffic", "a -> b"),
        (LinkFacts(20e6, 100e6, 40, sent_bytes=1e9), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 40, 1e7, usual_retransmits=700, usual_bytes=1e8), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 2, 3e6, usual_retransmits=0, usual_bytes=1e7), {}, "retransmissions", "a -> b"),
        (LinkFacts(20e6, 100e6, 2, 3e6, usual_retransmits=2, usual_bytes=1e7), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 1, 1e6, usual_retransmits=0, usual_bytes=1e7), {}, "slow link", "a -> b"),
        (SLOW, {"b": HostFacts(0.1, 60e6, usual_other_bps=55e6)}, "slow link", "a -> b"),
        (SLOW, {"b": HostFacts(0.99)}, "processor", "b"),
        (SLOW, {"b": HostFacts(0.99, usual_load=0.98)}, "slow link", "a -> b"),
        (LinkFacts(99e6, 100e6), {"c": HostFacts(0.99)}, "processor", "c"),
        (LinkFacts(99e6, 100e6), {}, "unknown", ""),
    ],
)
def test_counters_of_hosts_say_why_a_link_is_slow(
    link: LinkFacts, hosts: dict[str, HostFacts], cause: str, about: str
) -> None:
    found = diagnose(RoundFacts(1, 5.0, 1.0, "predicted", links={("a", "b"): link}, hosts=hosts))
    assert found is not None and (found.cause, found.about) == (cause, about)
    assert "instead of the predicted 1 s" in found.sentence


def test_a_round_as_long_as_predicted_needs_no_explanation() -> None:
    assert diagnose(RoundFacts(1, 1.2, 1.0, "predicted", links={("a", "b"): SLOW})) is None


@pytest.mark.parametrize(("usual_load", "cause"), [(0.3, "processor"), (1.0, "late rank")])
def test_a_late_rank_on_full_processors_is_put_down_to_them_unless_they_always_are(
    usual_load: float, cause: str
) -> None:
    hosts = {"b": HostFacts(1.0, usual_load=usual_load)}
    found = diagnose(RoundFacts(1, 1.0, 1.0, "usual", ready_s={"a": 0.0, "b": 5.0}, hosts=hosts))
    assert found is not None and (found.cause, found.about) == (cause, "b")
