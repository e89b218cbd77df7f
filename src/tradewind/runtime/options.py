"""Every setting of a run, in one place, and where its value came from.

An argument goes before the environment (`TRADEWIND_PLANNER=ring`), the environment before a file (`tradewind.toml` in
the working directory, or what TRADEWIND_CONFIG names), and the file before the default. What is not understood is
refused, wherever it stands: a misspelt setting that is silently ignored costs somebody a day.

To add a setting, add a field with the text below it; environment, file and `tradewind config` follow from that.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

import msgspec

from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import DEFAULT_PATIENCE_S, Deadlines
from tradewind.control.options import Scatter
from tradewind.errors import BadOption, BadPlan, InputError, UnknownName
from tradewind.network import Network
from tradewind.planning import planner_options as look_up_planner_options
from tradewind.planning.plan import Plan, plan_from_json
from tradewind.policy import policy_options as look_up_policy_options
from tradewind.runtime.addresses import HostPort, PortRange
from tradewind.runtime.submitted import DEFAULT_CARRIED_BYTES, check_carried_bytes
from tradewind.units import parse_duration

PREFIX = "TRADEWIND_"
FILE = "tradewind.toml"
FILE_VARIABLE = PREFIX + "CONFIG"
OTHER_VARIABLES = (
    "TRADEWIND_CONFIG",
    "TRADEWIND_SECRET",
    "TRADEWIND_SHAPE",
    "TRADEWIND_CONTROLLERS",
    "TRADEWIND_DEBUG",
)
"""Of ours, but no settings: a secret is never printed or written to a file."""
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is to be; validated on construction. `said` are the settings that were given, by name.

    >>> Options(planner="ring").said, Options(deadline=5).deadline
    (frozenset({'planner'}), 5.0)
    """

    planner: str | None = None
    """How bytes travel; by default optimal on a network that is known, equal shares on one that is not."""
    planner_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the planner, as in `tradewind planners NAME`; in the environment as key=value,key=value."""
    plan: Path | None = None
    """A file with the plan to use, instead of a planner."""
    policy: str = "bsp"
    """Who averages with whom, where a `Synchronizer` or `Group.average` does; all other operations are of everybody."""
    policy_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the policy; in the environment as key=value,key=value."""
    scatter: Scatter = "blocking"
    """non-blocking: a worker that is ready sends before its round is known (docs/synchronizer.md)."""
    network: str | Network | None = None
    """What lies between the sites: a name from `tradewind networks` or a file."""
    site: str | None = None
    """Which site of the network this process is; by default the one at the place of its rank."""
    controller: str | None = None
    """HOST:PORT of a `tradewind controller`; by default rank 0 of every group embeds one."""
    deadline: float = DEFAULT_PATIENCE_S
    """Seconds of silence after which a worker is lost and everybody is told; all other time limits follow."""
    bind: str | None = None
    """The address to listen on; by default the one that reaches the master, loopback if that is on this host."""
    interface: str | None = None
    """The network interface to listen on, instead of an address."""
    advertise: str | None = None
    """The address that others are told to call, where it is not the one to listen on."""
    ports: str | int | None = None
    """The port or range of ports to listen on, such as 29600-29607, for a firewall; by default any that is free."""
    connections: int | None = None
    """TCP connections to each peer; by default as many as bandwidth x delay of the network asks for."""
    local_sockets: bool = True
    """Whether processes of one machine exchange data through Unix sockets, at half the kernel's time of TCP."""
    inner: Literal["auto", "gloo"] = "auto"
    """Who does everything but all-reduce for CUDA tensors of a PyTorch group: auto (NCCL where it is there) or gloo."""
    awareness: bool = True
    """Whether links are measured while running, and plans follow (docs/awareness.md)."""
    update_time: float = 5.0
    """Seconds after which plans are looked at again."""
    significant_change: float = 0.2
    """A link that changes by this share has its plans looked at at once."""
    probe: bool = False
    """Whether every link is measured before the first round."""
    probe_chunk_size: int = 8192
    """Bytes; smaller chunks say nothing about a link."""
    probe_chunks: int = 4
    """How many chunks a measurement rests on at least."""
    auxiliary_paths: bool = False
    """Whether chunks that would wait for a busy link take other paths."""
    roots: int | None = None
    """How many roots planner fapt uses; by default every member."""
    chunk_size: int | None = None
    """Bytes of the chunks that arrays are cut into; by default as the planner says."""
    carried_size: int = DEFAULT_CARRIED_BYTES
    """Bytes; smaller arrays travel in the messages to the controller and back, which saves hops; 0: none do."""
    log: str = "warning"
    """How much a run says: debug, info (the network, the plan and why, in the end what limited it), warning, error."""

    said: frozenset[str] = dataclasses.field(init=False, repr=False, compare=False)
    """Which settings were given, to this object; the others are defaults."""

    def __new__(cls, **given: object) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "said", frozenset(given))
        return self

    def __post_init__(self) -> None:
        for name in setting_names():
            object.__setattr__(self, name, _converted(name, getattr(self, name)))
        Deadlines(self.deadline)
        self.aware  # noqa: B018 - refuses what makes no sense
        if self.planner is not None:
            look_up_planner_options(self.planner, self.chosen_planner_options)
        look_up_policy_options(self.policy, self.policy_options)
        if self.roots is not None and self.planner != "fapt":
            raise BadOption(f"roots={self.roots} is for planner fapt, not {self.planner or 'the default one'}.")
        if self.planner is not None and self.plan is not None:
            raise BadOption(
                f"planner={self.planner!r} and plan={str(self.plan)!r} both say how bytes travel. Give one."
            )
        check_carried_bytes(self.carried_size)
        if self.controller is not None:
            HostPort.parse(self.controller)
        if self.ports is not None:
            PortRange.parse(self.ports)
        if self.log not in LOG_LEVELS:
            raise UnknownName("log level", self.log, LOG_LEVELS)

    @property
    def chosen_planner_options(self) -> Mapping[str, Any]:
        """The planner's options, roots included."""
        return self.planner_options if self.roots is None else {**self.planner_options, "roots": self.roots}

    @property
    def aware(self) -> Awareness:
        """What the run does about its network."""
        return Awareness(
            measure=self.awareness,
            update_time_s=self.update_time,
            significant_change=self.significant_change,
            probe=self.probe,
            min_chunk_bytes=self.probe_chunk_size,
            probe_chunks=self.probe_chunks,
            auxiliary=self.auxiliary_paths,
            chunk_bytes=self.chunk_size,
        )


def setting_names() -> tuple[str, ...]:
    """All of them, in the order of the fields."""
    return tuple(field.name for field in dataclasses.fields(Options) if field.init)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value and who said so."""

    name: str
    value: object
    origin: str
    """`argument`, `default`, or the name of the variable or file."""


def resolve_settings(
    given: Options | None = None, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[Options, tuple[Setting, ...]]:
    """The options that hold, and where each comes from, in the order of the fields."""
    environment = os.environ if environment is None else environment
    names = setting_names()
    said: dict[str, tuple[Any, str]] = {}
    for name, value, origin in (*_from_file(environment, folder or Path.cwd()), *_from_environment(environment)):
        if name not in names:
            raise _unknown(name, names, origin)
        try:
            Options(**{name: value})
        except InputError as error:
            raise BadOption(f"{origin}: {error}") from None
        said[name] = (value, origin)
    for name in sorted(given.said) if given is not None else ():
        said[name] = (getattr(given, name), "argument")
    options = Options(**{name: value for name, (value, _) in said.items()})
    settings = (Setting(name, getattr(options, name), said.get(name, (None, "default"))[1]) for name in names)
    return options, tuple(settings)


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    return [
        (variable.removeprefix(PREFIX).lower(), environment[variable], variable)
        for variable in sorted(environment)
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES and environment[variable] != ""
    ]


def _from_file(environment: Mapping[str, str], folder: Path) -> list[tuple[str, Any, str]]:
    named = environment.get(FILE_VARIABLE)
    path = Path(named) if named else folder / FILE
    if not named and not path.is_file():
        return []
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadOption(f"{path}: cannot be read ({error.strerror}). Correct {FILE_VARIABLE}.") from None
    except ValueError as error:
        raise BadOption(f"{path}: is no TOML: {error}.") from None
    return [(key.replace("-", "_"), value, str(path)) for key, value in found.items()]


def _unknown(name: str, names: tuple[str, ...], origin: str) -> BadOption:
    return BadOption(f"{origin}: {UnknownName('setting', name, names)} `tradewind config` shows them all.")


def _converted(name: str, value: object) -> object:
    """A value of the field's type; from text, as a variable or a file has it, where need be."""
    if name == "network" and isinstance(value, Network):
        return value
    if isinstance(value, Path):
        value = str(value)
    if name == "deadline" and isinstance(value, str) and value[-1:].isalpha():
        value = parse_duration(value)
    if name in ("planner_options", "policy_options") and isinstance(value, str):
        value = dict(_pair(part) for part in value.split(","))
    kind = str | None if name in ("network", "plan") else get_type_hints(Options)[name]
    try:
        made = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadOption(f"{name}={value!r}: {error}.") from None
    return Path(made) if name == "plan" and made is not None else made


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadOption(f"{text!r} is not key=value, separated by commas.")
    return key.strip(), value.strip()


def load_network(named: str | Path | Network | None) -> Network | None:
    """The network that a setting names: in the catalog, or in a file."""
    if named is None or isinstance(named, Network):
        return named
    from tradewind import catalog

    return catalog.load_network(named)


def load_plan(path: str | Path) -> Plan:
    """The plan in a file."""
    try:
        return plan_from_json(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise BadPlan(f"cannot read plan {path}: {error.strerror}.") from None
