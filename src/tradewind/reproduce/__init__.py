"""Every figure and table of the five papers, one name each: `mtree/fig6`, computed here, beside the paper's claim.

To add one, write a function from `Setting` to `Outcome`, wrap it in an `Experiment` and add one line to
`_EXPERIMENTS`. The function names its trials as calls of module-level functions and hands them to `setting.workers`,
which runs them on one core, on many, or on a cluster, and never runs the same one twice.

An experiment may also have a live form, which runs on real connections in an emulated network (`lab`): another
`Experiment`, whose name ends in `/live`. Where the paper's figure cannot be simulated, that form is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tradewind.errors import BadOption, InternalError, UnknownName
from tradewind.registry import load_entry
from tradewind.reproduce.report import Outcome
from tradewind.reproduce.work import Workers

LIVE = "/live"

_EXPERIMENTS = {
    "mtree/fig6": "tradewind.reproduce.mtree:FIG6",
    "mtree/fig7": "tradewind.reproduce.mtree:FIG7",
    "mtree/fig8": "tradewind.reproduce.mtree_completion:FIG8",
    "mtree/fig9": "tradewind.reproduce.mtree_chunks:FIG9",
    "mtree/fig10": "tradewind.reproduce.mtree_chunks:FIG10",
    "mtree/fig11": "tradewind.reproduce.mtree_limits:FIG11",
    "mtree/fig12": "tradewind.reproduce.mtree_limits:FIG12",
    "mtree/fig13": "tradewind.reproduce.mtree_limits:FIG13",
    "crew/fig3": "tradewind.reproduce.crew_training:FIG3",
    "crew/fig4": "tradewind.reproduce.crew:FIG4",
    "crew/fig5": "tradewind.reproduce.crew:FIG5",
    "crew/fig6": "tradewind.reproduce.crew_flows:FIG6",
    "crew/fig7": "tradewind.reproduce.crew_flows:FIG7",
    "crew/fig8": "tradewind.reproduce.crew_stress:FIG8",
    "crew/fig9": "tradewind.reproduce.crew_loads:FIG9",
    "crew/fig10": "tradewind.reproduce.crew_loads:FIG10",
    "crew/fig11": "tradewind.reproduce.crew_stress:FIG11",
    "selective/fig3": "tradewind.reproduce.selective_example:FIG3",
    "selective/fig5": "tradewind.reproduce.selective:FIG5",
    "selective/fig6": "tradewind.reproduce.selective:FIG6",
    "selective/fig7": "tradewind.reproduce.selective:FIG7",
    "selective/fig8": "tradewind.reproduce.selective_parameters:FIG8",
    "selective/fig9": "tradewind.reproduce.selective_parameters:FIG9",
    "selective/fig10": "tradewind.reproduce.selective_parameters:FIG10",
    "selective/fig11": "tradewind.reproduce.selective_robustness:FIG11",
    "selective/fig12": "tradewind.reproduce.selective_robustness:FIG12",
    "selective/fig13": "tradewind.reproduce.selective_robustness:FIG13",
    "selective/fig14": "tradewind.reproduce.selective_robustness:FIG14",
    "selective/options": "tradewind.reproduce.selective_options:OPTIONS",
    "selective/training/live": "tradewind.reproduce.straggler_live_systems:SELECTIVE_TRAINING",
    "ds-sync/table2": "tradewind.reproduce.ds_sync_costs:TABLE2",
    "ds-sync/table3": "tradewind.reproduce.ds_sync:TABLE3",
    "ds-sync/table4": "tradewind.reproduce.ds_sync:TABLE4",
    "ds-sync/table5": "tradewind.reproduce.ds_sync:TABLE5",
    "ds-sync/training/live": "tradewind.reproduce.straggler_live_systems:DS_SYNC_TRAINING",
    "netstorm/fig1": "tradewind.reproduce.netstorm_example:FIG1",
    "netstorm/fig13/live": "tradewind.reproduce.netstorm_live_systems:FIG13",
    "netstorm/fig14": "tradewind.reproduce.netstorm:FIG14",
    "netstorm/fig14/live": "tradewind.reproduce.netstorm_live_systems:FIG14",
    "netstorm/fig15": "tradewind.reproduce.netstorm:FIG15",
    "netstorm/fig15/live": "tradewind.reproduce.netstorm_live_ablation:FIG15",
    "netstorm/fig16": "tradewind.reproduce.netstorm:FIG16",
    "netstorm/fig16/live": "tradewind.reproduce.netstorm_live_ablation:FIG16",
    "netstorm/fig17/live": "tradewind.reproduce.netstorm_live_ablation:FIG17",
    "netstorm/fig18/live": "tradewind.reproduce.netstorm_live_systems:FIG18",
    "netstorm/fig19": "tradewind.reproduce.netstorm_scale:FIG19",
    "netstorm/fig19/live": "tradewind.reproduce.netstorm_live_scale:FIG19",
    "netstorm/fig20/live": "tradewind.reproduce.netstorm_live_scale:FIG20",
    "tradewind/stragglers/live": "tradewind.reproduce.straggler_live_systems:STRAGGLERS",
    "tradewind/stragglers-skewed/live": "tradewind.reproduce.straggler_live_systems:SKEWED",
    "tradewind/combinations/live": "tradewind.reproduce.straggler_live_systems:TRIED",
}


@dataclass(frozen=True)
class Setting:
    """How much to compute, and who computes it."""

    workers: Workers
    trials: int | None = None
    """Random instances per point; by default what the paper used, or a few in a quick run."""
    quick: bool = False
    """A coarse grid and few trials: seconds rather than minutes, for a first look and for tests."""
    backend: str = "auto"
    """What emulates the network of live experiments: a backend of the lab."""

    def trial_numbers(self, published: int = 20, quick: int = 1) -> range:
        """The trials to run: each number is the seed of its instance."""
        return range(self.trials or (quick if self.quick else published))


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    name: str
    title: str
    claims: tuple[str, ...]
    """What the paper says the figure shows, in our words, with its numbers."""
    run: Callable[[Setting], Outcome]

    def outcome(self, setting: Setting) -> Outcome:
        """Run it; every claim must come back with a verdict."""
        found = self.run(setting)
        if tuple(claim.text for claim in found.claims) != self.claims:
            raise InternalError(f"experiment {self.name!r} did not judge exactly the claims that it names.")
        return found


def experiment_names(live: bool = False) -> tuple[str, ...]:
    """All experiments, by paper and figure: those that compute, or the live forms."""
    return tuple(name for name in _EXPERIMENTS if name.endswith(LIVE) == live)


def every_name() -> tuple[str, ...]:
    """All of them, a live form after the one that computes."""
    return tuple(_EXPERIMENTS)


def experiment(name: str) -> Experiment:
    """The experiment of that name; its module loads only now."""
    found = load_entry("experiment", name, _EXPERIMENTS)
    assert isinstance(found, Experiment)
    return found


def resolve_experiments(asked: Iterable[str], live: bool = False) -> tuple[str, ...]:
    """Full names, in the registry's order: `mtree` means all of MTREE's, and nothing asked means all.

    >>> resolve_experiments(["mtree/fig7", "mtree/fig6"])
    ('mtree/fig6', 'mtree/fig7')
    >>> resolve_experiments(["netstorm/fig14"], live=True)
    ('netstorm/fig14/live',)
    """
    asked, names = list(asked), experiment_names(live)
    chosen: set[str] = set() if asked else set(names)
    for name in asked:
        found = _found(name, names)
        if not found and _found(name, experiment_names(not live)):
            raise BadOption(
                f"{name} has no live form: leave --live out." if live else f"{name} has only a live form: add --live."
            )
        if not found:
            papers = {known.partition("/")[0] for known in _EXPERIMENTS}
            raise UnknownName("experiment", name, {*(known.removesuffix(LIVE) for known in _EXPERIMENTS), *papers})
        chosen |= found
    return tuple(name for name in names if name in chosen)


def _found(name: str, names: Iterable[str]) -> set[str]:
    return {known for known in names if known == name or known.startswith(f"{name}/")}
