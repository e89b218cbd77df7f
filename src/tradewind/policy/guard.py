"""Guards policies from plug-ins: their exceptions and invalid actions raise BadPlugin, which names the plug-in.

The guard is a class between the plug-in's class and the driver. The rules of `Machine` hold in any case: only ready
ranks start, weights sum to 1. An error of the driver (an impossible event) still raises `InternalError`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, get_args

from tradewind.errors import InputError, TradewindError, UnknownName
from tradewind.network import Network
from tradewind.planning import planner
from tradewind.plugins import Plugin, options_class
from tradewind.policy.actions import Action, SetTimer, StartRound
from tradewind.policy.events import Event, RoundFinished
from tradewind.policy.machine import Machine
from tradewind.policy.roster import Running

FORM = "__init__(self, network, workers, options: SomeDataclass, *, seed, now_s)"


def check_policy(make: Any, plugin: Plugin) -> type:
    """The options dataclass of a plug-in's policy; raises BadPlugin if `make` is not a valid policy class."""
    if not (isinstance(make, type) and issubclass(make, Machine)):
        raise plugin.error("it is not a subclass of tradewind.policy.Machine. Expected a class that defines `decide`.")
    if inspect.isabstract(make):
        missing = ", ".join(sorted(make.__abstractmethods__))
        raise plugin.error(f"class {make.__name__} does not define {missing}.")
    return options_class(plugin, make.__init__, FORM, None, None, None, None, seed=0, now_s=0.0)


class _Guard(Machine):
    """The class before a plug-in's class in the method resolution order; each method calls the plug-in's."""

    plugin: Plugin
    wrapped: type[Machine]

    def __init__(self, network: Network, workers: tuple[str, ...], *args: Any, **kwargs: Any) -> None:
        with self._blamed("__init__", InputError):
            super().__init__(network, workers, *args, **kwargs)

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        with self._blamed(f"handle({event})", TradewindError):
            actions = super().handle(event, now_s)
        if not isinstance(actions, tuple) or not all(isinstance(action, get_args(Action)) for action in actions):
            raise self.plugin.error(f"handle({event}) returned {actions!r}, expected a tuple of actions.")
        with self._blamed("actions"):
            for action in actions:
                self._check(action, now_s)
        return actions

    def decide(self) -> None:
        with self._blamed("decide"):
            super().decide()  # type: ignore[safe-super]  # the plug-in's, which is between this class and Machine

    def observe(self, event: Event) -> None:
        with self._blamed(f"observe({event})"):
            super().observe(event)

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:
        with self._blamed(f"round_ended({ended.round})"):
            super().round_ended(ended, finished)

    def note(self) -> str:
        with self._blamed("note"):
            return str(super().note())

    def _blamed(self, method: str, *passing: type[Exception]) -> Any:
        return self.plugin.blamed(f"{self.wrapped.__qualname__}.{method}", passing)

    def _check(self, action: Action, now_s: float) -> None:
        """Raise BadPlugin for an invalid action that would fail later, outside the plug-in."""
        if not isinstance(action.reason, str):
            raise self.plugin.error(f"the reason of {action} must be a string, got {action.reason!r}.")
        if isinstance(action, SetTimer) and not now_s < action.at_s < math.inf:
            raise self.plugin.error(
                f"it sets timer {action.timer!r} to {action.at_s} s at {now_s} s, expected a later time."
            )
        if isinstance(action, StartRound) and action.plan_hint is not None:
            try:
                planner(action.plan_hint)
            except UnknownName as error:
                raise self.plugin.error(f"round {action.round} has a plan_hint, but {error}") from error


def guarded(make: type[Machine], plugin: Plugin) -> type[Machine]:
    """A subclass of a plug-in's policy that reports the plug-in's errors as BadPlugin."""
    given = {"plugin": plugin, "wrapped": make, "__doc__": make.__doc__, "__module__": make.__module__}
    return type(make.__name__, (_Guard, make), {"name": getattr(make, "name", plugin.name), **given})
