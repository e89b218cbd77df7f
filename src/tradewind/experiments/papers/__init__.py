"""The registry of experiments: every figure and table of the five papers by name (`mtree/fig6`), with its claims.

To add one, write a function from `Setting` to `Outcome`, wrap it in an `Experiment` and add one line to
`_EXPERIMENTS`. The function passes its trials, as calls of module-level functions, to `setting.workers`, which runs
them on one core, on many, or on a cluster, and never runs the same one twice.

An experiment may also have a live form, which runs on real connections in an emulated network (`lab`): another
`Experiment`, whose name ends in `/live`. Where the paper's figure cannot be simulated, that form is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tradewind.errors import BadOption, InternalError, UnknownName
from tradewind.experiments.papers.report import Outcome
from tradewind.experiments.papers.work import Workers
from tradewind.registry import load_entry

LIVE = "/live"

_EXPERIMENTS = {
    "mtree/fig6": "tradewind.experiments.papers.mtree.trees:FIG6",
    "mtree/fig7": "tradewind.experiments.papers.mtree.trees:FIG7",
    "mtree/fig8": "tradewind.experiments.papers.mtree.completion:FIG8",
    "mtree/fig9": "tradewind.experiments.papers.mtree.chunks:FIG9",
    "mtree/fig10": "tradewind.experiments.papers.mtree.chunks:FIG10",
    "mtree/fig11": "tradewind.experiments.papers.mtree.limits:FIG11",
    "mtree/fig12": "tradewind.experiments.papers.mtree.limits:FIG12",
    "mtree/fig13": "tradewind.experiments.papers.mtree.limits:FIG13",
    "crew/fig3": "tradewind.experiments.papers.crew.training:FIG3",
    "crew/fig4": "tradewind.experiments.papers.crew.rounds:FIG4",
    "crew/fig5": "tradewind.experiments.papers.crew.rounds:FIG5",
    "crew/fig6": "tradewind.experiments.papers.crew.flows:FIG6",
    "crew/fig7": "tradewind.experiments.papers.crew.flows:FIG7",
    "crew/fig8": "tradewind.experiments.papers.crew.stress:FIG8",
    "crew/fig9": "tradewind.experiments.papers.crew.loads:FIG9",
    "crew/fig10": "tradewind.experiments.papers.crew.loads:FIG10",
    "crew/fig11": "tradewind.experiments.papers.crew.stress:FIG11",
    "selective/fig3": "tradewind.experiments.papers.selective.example:FIG3",
    "selective/fig5": "tradewind.experiments.papers.selective.scale:FIG5",
    "selective/fig6": "tradewind.experiments.papers.selective.scale:FIG6",
    "selective/fig7": "tradewind.experiments.papers.selective.scale:FIG7",
    "selective/fig8": "tradewind.experiments.papers.selective.parameters:FIG8",
    "selective/fig9": "tradewind.experiments.papers.selective.parameters:FIG9",
    "selective/fig10": "tradewind.experiments.papers.selective.parameters:FIG10",
    "selective/fig11": "tradewind.experiments.papers.selective.robustness:FIG11",
    "selective/fig12": "tradewind.experiments.papers.selective.robustness:FIG12",
    "selective/fig13": "tradewind.experiments.papers.selective.robustness:FIG13",
    "selective/fig14": "tradewind.experiments.papers.selective.robustness:FIG14",
    "selective/options": "tradewind.experiments.papers.selective.options:OPTIONS",
    "selective/training": "tradewind.experiments.stragglers.systems:SELECTIVE_TRAINING",
    "selective/training/live": "tradewind.experiments.stragglers.systems:SELECTIVE_TRAINING_LIVE",
    "ds-sync/fig3": "tradewind.experiments.papers.ds_sync.workers:FIG3",
    "ds-sync/fig7": "tradewind.experiments.papers.ds_sync.training:FIG7",
    "ds-sync/fig8": "tradewind.experiments.papers.ds_sync.training:FIG8",
    "ds-sync/fig9": "tradewind.experiments.papers.ds_sync.training:FIG9",
    "ds-sync/table2": "tradewind.experiments.papers.ds_sync.costs:TABLE2",
    "ds-sync/table3": "tradewind.experiments.papers.ds_sync.tables:TABLE3",
    "ds-sync/table4": "tradewind.experiments.papers.ds_sync.tables:TABLE4",
    "ds-sync/table5": "tradewind.experiments.papers.ds_sync.tables:TABLE5",
    "ds-sync/racks/live": "tradewind.experiments.papers.ds_sync.live_racks:RACKS",
    "ds-sync/training": "tradewind.experiments.stragglers.systems:DS_SYNC_TRAINING",
    "ds-sync/training/live": "tradewind.experiments.stragglers.systems:DS_SYNC_TRAINING_LIVE",
    "netstorm/fig1": "tradewind.experiments.papers.netstorm.example:FIG1",
    "netstorm/fig13": "tradewind.experiments.papers.netstorm.live_systems:FIG13",
    "netstorm/fig13/live": "tradewind.experiments.papers.netstorm.live_systems:FIG13_LIVE",
    "netstorm/fig14": "tradewind.experiments.papers.netstorm.simulated:FIG14",
    "netstorm/fig14/live": "tradewind.experiments.papers.netstorm.live_systems:FIG14",
    "netstorm/fig15": "tradewind.experiments.papers.netstorm.simulated:FIG15",
    "netstorm/fig15/live": "tradewind.experiments.papers.netstorm.live_ablation:FIG15",
    "netstorm/fig16": "tradewind.experiments.papers.netstorm.simulated:FIG16",
    "netstorm/fig16/live": "tradewind.experiments.papers.netstorm.live_ablation:FIG16",
    "netstorm/fig17": "tradewind.experiments.papers.netstorm.live_ablation:FIG17",
    "netstorm/fig17/live": "tradewind.experiments.papers.netstorm.live_ablation:FIG17_LIVE",
    "netstorm/fig18": "tradewind.experiments.papers.netstorm.live_systems:FIG18",
    "netstorm/fig18/live": "tradewind.experiments.papers.netstorm.live_systems:FIG18_LIVE",
    "netstorm/fig19": "tradewind.experiments.papers.netstorm.scale:FIG19",
    "netstorm/fig19/live": "tradewind.experiments.papers.netstorm.live_scale:FIG19",
    "netstorm/fig19a": "tradewind.experiments.papers.netstorm.slices:FIG19A",
    "netstorm/fig20": "tradewind.experiments.papers.netstorm.live_scale:FIG20",
    "netstorm/fig20/live": "tradewind.experiments.papers.netstorm.live_scale:FIG20_LIVE",
    "tradewind/stragglers": "tradewind.experiments.stragglers.systems:STRAGGLERS",
    "tradewind/stragglers/live": "tradewind.experiments.stragglers.systems:STRAGGLERS_LIVE",
    "tradewind/stragglers-skewed": "tradewind.experiments.stragglers.systems:SKEWED",
    "tradewind/stragglers-skewed/live": "tradewind.experiments.stragglers.systems:SKEWED_LIVE",
    "tradewind/chosen": "tradewind.experiments.stragglers.chosen:CHOSEN",
    "tradewind/alexnet": "tradewind.experiments.stragglers.systems:ALEXNET",
    "tradewind/alexnet/live": "tradewind.experiments.stragglers.systems:ALEXNET_LIVE",
    "tradewind/alexnet-skewed": "tradewind.experiments.stragglers.systems:ALEXNET_SKEWED",
    "tradewind/alexnet-skewed/live": "tradewind.experiments.stragglers.systems:ALEXNET_SKEWED_LIVE",
    "tradewind/resnet": "tradewind.experiments.stragglers.systems:RESNET",
    "tradewind/resnet/live": "tradewind.experiments.stragglers.systems:RESNET_LIVE",
    "tradewind/gpt": "tradewind.experiments.stragglers.systems:GPT",
    "tradewind/gpt/live": "tradewind.experiments.stragglers.systems:GPT_LIVE",
    "tradewind/changing": "tradewind.experiments.papers.netstorm.live_systems:CHANGING",
    "tradewind/changing/live": "tradewind.experiments.papers.netstorm.live_systems:CHANGING_LIVE",
    "tradewind/combinations/live": "tradewind.experiments.stragglers.systems:TRIED",
    "reasons/mtree": "tradewind.experiments.papers.reasons.mtree:REASONS",
    "reasons/crew": "tradewind.experiments.papers.reasons.crew:REASONS",
    "reasons/selective": "tradewind.experiments.papers.reasons.selective:REASONS",
    "reasons/ds-sync": "tradewind.experiments.papers.reasons.ds_sync:REASONS",
    "reasons/netstorm": "tradewind.experiments.papers.reasons.netstorm:REASONS",
    "reasons/tradewind": "tradewind.experiments.papers.reasons.tradewind:REASONS",
}


@dataclass(frozen=True)
class Setting:
    """How much to compute, and where."""

    workers: Workers
    trials: int | None = None
    """Random instances per point; None: as many as in the paper, or a few in a quick run."""
    quick: bool = False
    """Whether to use a coarse grid and few trials, which take seconds rather than minutes (for tests)."""
    backend: str = "auto"
    """Backend of the lab that emulates the network of live experiments."""
    kept: str | None = None
    """Folder in which trainings store each seed, so that a run that was interrupted goes on where it ended."""

    def trial_numbers(self, published: int = 20, quick: int = 1) -> range:
        """The numbers of the trials to run; each is the seed of its instance."""
        return range(self.trials or (quick if self.quick else published))


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper."""

    name: str
    title: str
    claims: tuple[str, ...]
    """The paper's claims about the figure, in our words, with its numbers."""
    run: Callable[[Setting], Outcome]

    def outcome(self, setting: Setting) -> Outcome:
        """Run the experiment; raises `InternalError` if it does not judge exactly its claims.

        A quick run has numbers and no verdicts.
        """
        found = self.run(setting)
        if tuple(claim.text for claim in found.claims) != self.claims:
            raise InternalError(f"experiment {self.name!r} did not judge exactly the claims that it names.")
        return found.without_verdicts() if setting.quick else found


def in_both_forms(
    name: str,
    title: str,
    claims: tuple[str, ...],
    run: Callable[[Setting, str, bool], Outcome],
    computed: Callable[[str], bool] = lambda _: True,
) -> tuple[Experiment, Experiment]:
    """An experiment on virtual time and live; `run` gets a label, and whether time is virtual.

    `computed` says which claims the form on virtual time judges: not those that another figure computes.
    """
    own = tuple(filter(computed, claims))

    def run_virtual(setting: Setting) -> Outcome:
        found = run(setting, name, True)
        return replace(found, claims=tuple(claim for claim in found.claims if claim.text in own))

    return (
        Experiment(name, f"{title}, on virtual time", own, run_virtual),
        Experiment(f"{name}{LIVE}", f"{title}, live", claims, lambda setting: run(setting, f"{name} live", False)),
    )


def experiment_names(live: bool = False) -> tuple[str, ...]:
    """The names of all computed experiments, or of all live ones."""
    return tuple(name for name in _EXPERIMENTS if name.endswith(LIVE) == live)


def every_name() -> tuple[str, ...]:
    """The names of all experiments, a live form after the computed one."""
    return tuple(_EXPERIMENTS)


def experiment(name: str) -> Experiment:
    """The experiment of that name; imports its module."""
    found = load_entry("experiment", name, _EXPERIMENTS)
    assert isinstance(found, Experiment)
    return found


def resolve_experiments(asked: Iterable[str], live: bool = False) -> tuple[str, ...]:
    """The full names of the requested experiments, in the registry's order.

    `mtree` means all of MTREE's, and an empty request all experiments. Raises `UnknownName` for unknown names, and
    `BadOption` for names that only have the other form (live or computed).

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
