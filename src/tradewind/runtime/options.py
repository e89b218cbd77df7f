"""`RunOptions`: every option of a run, under one name in Python, environment, file and command line.

An argument takes precedence over the environment (`TRADEWIND_PLANNER=ring`), the environment over a file
(`tradewind.toml` in the working directory, or the one that TRADEWIND_CONFIG names), and the file over the default. A
variable is TRADEWIND_ and the field's name in upper case, whichever group the field belongs to; in a file the groups
are tables (`[transport]`). An unknown name or invalid value raises BadOption: a misspelt option that is silently
ignored is hard to find.

To add an option, add a field with its meaning below it. Environment, file, `tradewind config` and the reference
follow from the field.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

from tradewind.control import ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import DEFAULT_PATIENCE_S, Deadlines
from tradewind.control.options import STRICT_POLICY, Scatter, check_scatter
from tradewind.errors import BadOption, BadPlan, InputError, UnknownName
from tradewind.native import VARIABLE as NATIVE_VARIABLE
from tradewind.network import Network
from tradewind.planning import planner_options as look_up_planner_options
from tradewind.planning.host import MAX_CONNECTIONS, Machine
from tradewind.planning.patch import Failover
from tradewind.planning.plan import Plan, plan_from_json
from tradewind.policy import policy_options as look_up_policy_options
from tradewind.registry import OptionGroup
from tradewind.runtime.addresses import HostPort, PortRange
from tradewind.runtime.certificates import CertificateFiles, SecurityMode
from tradewind.runtime.trace_file import TracePlace
from tradewind.schemes import make_scheme, options_of
from tradewind.wire.codecs import NONE, check_codec
from tradewind.wire.messages import MAX_INLINE_BYTES, Discipline

PREFIX = "TRADEWIND_"
FILE = "tradewind.toml"
FILE_VARIABLE = PREFIX + "CONFIG"
LAB_VARIABLE = "TRADEWIND_CONTROLLERS"
"""Set for every process that a lab starts in a site."""
OTHER_VARIABLES = (
    "TRADEWIND_CONFIG",
    "TRADEWIND_SECRET",
    "TRADEWIND_SHAPE",
    LAB_VARIABLE,
    "TRADEWIND_DEBUG",
    "TRADEWIND_DASHBOARD_TOKEN",
    NATIVE_VARIABLE,
)
"""TRADEWIND_* variables that are not options: a secret is never printed or written to a file."""
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_INLINE_BYTES = 16 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transport(OptionGroup):
    """Where a rank listens, and how arrays travel."""

    bind: str | None = None
    """The address to listen on. Default: loopback for `connect`; in PyTorch the address that reaches the master."""
    interface: str | None = None
    """The network interface to listen on, instead of an address."""
    advertise: str | None = None
    """The address that other ranks call, where it is not the one to listen on."""
    ports: str | int | None = None
    """The port or range of ports to listen on, such as 29600-29607, for a firewall. Default, or "": any free port."""
    connections: int | None = None
    """TCP connections to each peer, 1 to 16. Default: what bandwidth x delay needs, known or measured, and by cores."""
    local_sockets: bool = True
    """Whether ranks of one machine reach each other and the controller through Unix sockets, which take half the kernel
    time of TCP."""
    inline_bytes: int = DEFAULT_INLINE_BYTES
    """Arrays up to this size travel in control messages (an inline round), which saves hops; 0: never."""
    chunk_bytes: int | None = None
    """Size of the chunks that arrays are cut into (NetStorm: CHUNK_SIZE). Default: as the planner decides."""
    fit_chunks: bool = True
    """Whether small chunk sizes of a planner are replaced by those that suit network and processors best."""
    send_ahead: bool = True
    """Whether ranks send the first chunks of a round before it starts, where operations repeat (docs/runtime.md)."""

    def __post_init__(self) -> None:
        OptionGroup.__post_init__(self)
        if self.connections is not None and not 1 <= self.connections <= MAX_CONNECTIONS:
            raise BadOption(f"connections must be from 1 to {MAX_CONNECTIONS}, got {self.connections}.")
        if not 0 <= self.inline_bytes <= MAX_INLINE_BYTES:
            raise BadOption(f"inline_bytes must be from 0 to {MAX_INLINE_BYTES}, got {self.inline_bytes}.")
        if self.chunk_bytes is not None and not 1024 <= self.chunk_bytes <= 2**23:
            raise BadOption(f"chunk_bytes must be from 1 KiB to 8 MiB, got {self.chunk_bytes}.")
        self.port_range  # noqa: B018 - raises for an invalid range

    @property
    def port_range(self) -> PortRange | None:
        """The ports to listen on; None: any free port."""
        return None if self.ports is None or self.ports == "" else PortRange.parse(self.ports)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance(OptionGroup):
    """What a run does about ranks that are lost, silent or late."""

    tolerant: bool | None = None
    """Whether the run continues without lost ranks, which may rejoin. Default: unless the policy is bsp."""
    patience_s: float = DEFAULT_PATIENCE_S
    """Seconds of silence after which a rank counts as lost; every other time limit follows from it."""
    straggler_s: float | None = None
    """Seconds that a round waits for its last member. Default: 20 x patience_s; in PyTorch the group's timeout."""

    def __post_init__(self) -> None:
        OptionGroup.__post_init__(self)
        self.deadlines  # noqa: B018 - raises for an invalid time limit

    @property
    def deadlines(self) -> Deadlines:
        """The time limits of the run, which follow from `patience_s` and `straggler_s`."""
        return Deadlines(self.patience_s, self.straggler_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tls(OptionGroup):
    """Encrypted connections: the files, in PEM format, which are loaded without a restart if they change, and how."""

    certificate: str | None = None
    """The certificate of this rank's site, signed by the CA of the run (docs/guides/security.md)."""
    key: str | None = None
    """The private key of the certificate, without a password."""
    ca: str | None = None
    """The certificate of the run's CA, the same at all ranks."""
    aead: bool = True
    """Let the kernels in C encrypt frames on fast links, under keys made inside TLS, where both ends have them; False:
    TLS encrypts all frames (docs/guides/security.md)."""

    @property
    def files(self) -> CertificateFiles | None:
        """The files; None if none is given. Raises BadOption if some are missing."""
        given = {name: getattr(self, name) for name in ("certificate", "key", "ca")}
        missing = [f"{name}=" for name, path in given.items() if not path]
        if missing and len(missing) < len(given):
            raise BadOption(
                f"{' and '.join(missing)} of Tls not given: certificate=, key= and ca= are needed together. Set "
                f"{' and '.join(PREFIX + name[:-1].upper() for name in missing)}."
            )
        return None if missing else CertificateFiles(*(Path(path).expanduser() for path in given.values()))


GROUPS: dict[str, type[OptionGroup]] = {
    "awareness": Awareness,
    "transport": Transport,
    "tolerance": Tolerance,
    "tls": Tls,
}
"""The nested dataclasses of `RunOptions`, by field. No two of them have a field of the same name."""

RENAMED = {
    "abandoned": "hooks.abandoned",
    "auxiliary_paths": "awareness.auxiliary",
    "carried_bytes": "transport.inline_bytes",
    "carried_size": "transport.inline_bytes",
    "chunk_size": "transport.chunk_bytes",
    "deadline": "tolerance.patience_s",
    "embed": "controller",
    "listening": "hooks.listening",
    "name": "site",
    "probe_chunk_size": "awareness.min_chunk_bytes",
    "roots": "planner_options.roots",
    "shape": "hooks.shape",
    "update_time": "awareness.update_time_s",
}
"""Names in earlier versions, and the current path of the option."""


def _as_argument(path: str) -> str:
    """The option as a Python argument, for messages.

    >>> _as_argument("transport.ports"), _as_argument("site")
    ('transport=Transport(ports=...)', 'site=...')
    """
    group, _, field = path.rpartition(".")
    if group == "planner_options":
        return f'planner_options={{"{field}": ...}}'
    return f"{group}={group.capitalize()}({field}=...)" if group else f"{field}=..."


def _as_variable(path: str) -> str:
    group, _, field = path.rpartition(".")
    return f"{PREFIX}PLANNER_OPTIONS={field}=..." if group == "planner_options" else f"{PREFIX}{field.upper()}"


def _as_file_entry(path: str) -> str:
    group, _, field = path.rpartition(".")
    return f"{field} in table [{group}]" if group else field


_IN_GROUPS = {name: f"{group}.{name}" for group, kind in GROUPS.items() for name in kind.field_names()}
_ARGUMENTS = {old: _as_argument(path) for old, path in {**_IN_GROUPS, **RENAMED}.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(OptionGroup):
    """How a run synchronises; validated on construction.

    Options of the whole run (`scheme` to `network`, `awareness`, `tolerance`) take effect where its controller runs.

    >>> RunOptions(scheme="crew", policy_options={"p": 4}).planner
    'scatter'
    >>> RunOptions(tolerance=Tolerance(patience_s="90ms")).tolerance.patience_s
    0.09
    """

    renamed: ClassVar = _ARGUMENTS

    scheme: str | None = None
    """A system such as crew, or POLICY+PLANNER: sets policy, planner and their options (docs/concepts/scheme.md)."""
    policy: str = STRICT_POLICY
    """Which ranks average together in `Group.average` and `Synchronizer`; other operations involve all ranks."""
    policy_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the policy; in the environment as key=value,key=value."""
    planner: str | None = None
    """How bytes travel. Default: optimal on a known network, zoned beyond 64 sites, equal shares on an unknown one."""
    planner_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the planner, as in `tradewind planners NAME`; in the environment as key=value,key=value."""
    plan: Plan | Path | str | None = None
    """The plan to use, or its file, instead of a planner."""
    scatter: Scatter = "blocking"
    """non-blocking: a ready rank sends before its round is known (docs/guides/synchronizer.md)."""
    discipline: Discipline = "task-fcfs"
    """What a connection sends first: the round that started first (task-fcfs), or the flow that came first (fcfs)."""
    failover: Failover = "reroute"
    """After a lost link, go around it (reroute) or move the block to another aggregator (replace: CREW's Eq. 3)."""
    codec: str = NONE
    """How sums and means of floats are encoded: none, bf16, fp16, int8, fp8, int4, int4-32, topk, topk-32, -128 and
    -256, auto (docs/guides/compression.md)."""
    network: Network | Path | str | None = None
    """The links between the sites: a name from `tradewind networks` or a file. Default: unknown, and measured."""
    site: str | None = None
    """The site where this process runs; several may share one (docs/guides/several-ranks.md). Default: by its rank."""
    controller: str | tuple[str, ...] | None = None
    """HOST:PORT of a `tradewind controller`; several, separated by commas, with standbys. Default: rank 0 runs it."""
    awareness: Awareness = dataclasses.field(default_factory=Awareness)
    """How links are measured and plans follow (docs/guides/changing-networks.md)."""
    transport: Transport = dataclasses.field(default_factory=Transport)
    """Where to listen, and how arrays travel."""
    tolerance: Tolerance = dataclasses.field(default_factory=Tolerance)
    """What happens to ranks that are lost, silent or late."""
    security: SecurityMode = "auto"
    """tls, secret (admission only), off; auto: TLS beyond loopback if certificates are given (docs/guides/security.md).
    """
    tls: Tls = dataclasses.field(default_factory=Tls)
    """Certificate, key and CA for encrypted connections."""
    inner: Literal["auto", "gloo", "nccl"] = "auto"
    """PyTorch only: what runs collectives of CUDA tensors that are not planned, auto (NCCL where available) or gloo;
    nccl: as auto, and ranks of a site add up CUDA tensors with it (docs/guides/several-ranks.md).
    """
    compression: str = NONE
    """PyTorch only: the codec of a process group's gradients, with error feedback (docs/guides/compression.md)."""
    trace: Path | str | None = None
    """The directory to write a trace of the run to, a file for each rank and the controller (docs/runtime.md)."""
    trace_minute_bytes: int = 500_000
    """How much the trace of a run grows in a minute, such as 10MB; rounds beyond it are summed up. 0: no limit."""
    dashboard: str | int | None = None
    """Where the controller serves the live page, as :8080 (loopback) or HOST:PORT (docs/guides/watching.md)."""
    metrics: str | int | None = None
    """Where each rank serves its own metrics for Prometheus, as :9100 (loopback) or HOST:PORT; ranks of one machine use
    the next free ports (docs/guides/watching.md)."""
    expected_rounds: int | None = None
    """How many rounds the run will have: the live page forecasts its end, egress and price (docs/guides/watching.md).
    """
    log: str = "warning"
    """What a run logs: debug, info (network, plan and reason, at the end what limited it), warning, error."""

    def __post_init__(self) -> None:
        OptionGroup.__post_init__(self)
        if self.planner is not None and self.plan is not None:
            raise BadOption(f"planner={self.planner!r} and plan= exclude each other. Give one of them.")
        if self.scheme is not None:
            self._follow(self.scheme)
        if self.planner is not None:
            look_up_planner_options(self.planner, self.planner_options)
        if self.given & {"policy", "scheme"}:
            look_up_policy_options(self.policy, self.policy_options)
        for address in self.controllers:
            HostPort.parse(address)
        self.dashboard_address, self.metrics_address  # noqa: B018 - raise for an invalid address
        check_codec(self.codec)
        check_codec(self.compression)
        if self.trace_minute_bytes < 0:
            raise BadOption(f"trace_minute_bytes must be >= 0, got {self.trace_minute_bytes}.")
        if self.expected_rounds is not None and self.expected_rounds < 1:
            raise BadOption(f"expected_rounds must be >= 1, got {self.expected_rounds}.")
        if self.log not in LOG_LEVELS:
            raise UnknownName("log level", self.log, LOG_LEVELS)

    def _follow(self, scheme: str) -> None:
        """Set the options that the scheme implies and that were not given."""
        made = make_scheme(
            scheme,
            policy=self.policy if "policy" in self.given else None,
            planner=self.planner,
            policy_options=self.policy_options,
            planner_options=self.planner_options,
        )
        parts: dict[str, object] = {"policy": made.policy, "policy_options": made.policy_options}
        if self.plan is None:
            parts |= {"planner": made.planner, "planner_options": made.planner_options}
        own = {"scatter": made.scatter, "discipline": made.discipline or "task-fcfs", "failover": made.failover}
        parts |= {name: value for name, value in own.items() if name not in self.given}
        for group in GROUPS:
            parts[group] = getattr(self, group).with_defaults(options_of(scheme, group))
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @classmethod
    def convert_field(cls, name: str, value: object) -> object:
        """The value converted to the field's type; raises BadOption if it is invalid."""
        if name in GROUPS:
            return _converted_group(name, value)
        if name in ("network", "plan"):
            expected = Network if name == "network" else Plan
            if isinstance(value, str) and name == "plan":
                return Path(value)
            if value is None or isinstance(value, expected | Path | str):
                return value
            raise BadOption(f"{name} must be a {expected.__name__}, a file or a name, got {value!r}.")
        if name == "trace":
            if value is not None and not isinstance(value, Path | str):
                raise BadOption(f"trace must be a directory, got {value!r}.")
            return Path(value) if value else None
        if name == "controller" and isinstance(value, str) and "," in value:
            value = [part.strip() for part in value.split(",")]
        if name in ("planner_options", "policy_options") and isinstance(value, str):
            value = dict(_pair(part) for part in value.split(","))
        return super().convert_field(name, value)

    @property
    def dashboard_address(self) -> HostPort | None:
        """Where the live page is served; None: nowhere.

        >>> str(RunOptions(dashboard=":8080").dashboard_address), RunOptions().dashboard_address
        ('127.0.0.1:8080', None)
        """
        return _served_at(self.dashboard)

    @property
    def metrics_address(self) -> HostPort | None:
        """Where this rank serves its own metrics, or the next free port; None: nowhere."""
        return _served_at(self.metrics)

    @property
    def trace_place(self) -> TracePlace | None:
        """Where a trace is written; None: nowhere."""
        return None if self.trace is None else TracePlace(Path(self.trace), self.trace_minute_bytes)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Addresses of controllers that run as separate processes, the initially active one first."""
        return (self.controller,) if isinstance(self.controller, str) else self.controller or ()

    def over(self, lower: RunOptions) -> RunOptions:
        """These options, with those that are not given taken from `lower`.

        A scheme replaces the options of `lower` that it sets.

        >>> options = RunOptions(planner="ring").over(RunOptions(planner="star", transport=Transport(ports=29600)))
        >>> options.planner, options.transport.ports
        ('ring', 29600)
        """
        return _build(_merged(_entries(lower, ""), _entries(self, "")))

    def complete(self) -> RunOptions:
        """The same options with every one but `log` marked as given, so that neither environment nor file changes them.

        Measurements must not depend on the user's shell.
        """
        return _build({path: (value_at(self, path), "") for path in option_paths() if path != "log"}).over(self)

    def check_combination(self) -> None:
        """Raise BadOption for options that exclude each other; to be called when all sources are merged."""
        look_up_policy_options(self.policy, self.policy_options)
        check_scatter(self.scatter, self.planner)
        self.tls.files  # noqa: B018 - raises if some are missing

    def control_options(
        self, world: int, controllers: int = 1, index: int = 0, machine: Machine | None = None
    ) -> ControlOptions:
        """The options for controller number `index` of a run of `world` ranks, which have machines like this one."""
        return ControlOptions(
            world,
            load_network(self.network),
            load_plan(self.plan) if isinstance(self.plan, str | Path) else self.plan,
            self.planner,
            self.planner_options,
            self.policy,
            self.policy_options,
            self.tolerance.deadlines,
            self.scatter,
            self.discipline,
            self.failover,
            tolerant=True if controllers > 1 else self.tolerance.tolerant,
            awareness=self.awareness,
            chunk_bytes=self.transport.chunk_bytes or (None if self.transport.fit_chunks else 0),
            send_ahead=self.transport.send_ahead,
            controllers=controllers,
            index=index,
            rounds=self.expected_rounds,
            machine=machine,
            connections=self.transport.connections,
        )


class RunFields(TypedDict, total=False):
    """The fields of `RunOptions`, for functions that take them as keywords."""

    scheme: str | None
    policy: str
    policy_options: Mapping[str, Any]
    planner: str | None
    planner_options: Mapping[str, Any]
    plan: Plan | Path | str | None
    scatter: Scatter
    discipline: Discipline
    failover: Failover
    codec: str
    network: Network | Path | str | None
    site: str | None
    controller: str | tuple[str, ...] | None
    awareness: Awareness
    transport: Transport
    tolerance: Tolerance
    security: SecurityMode
    tls: Tls
    inner: Literal["auto", "gloo", "nccl"]
    compression: str
    trace: Path | str | None
    trace_minute_bytes: int
    dashboard: str | int | None
    metrics: str | int | None
    expected_rounds: int | None
    log: str


def _served_at(given: str | int | None) -> HostPort | None:
    """The address of an HTTP server; loopback, if only a port is given."""
    if given is None or given == "":
        return None
    text = str(given)
    return HostPort.parse(f"127.0.0.1:{text.removeprefix(':')}" if text.lstrip(":").isdecimal() else text)


SCHEME_PARTS = ("policy", "policy_options", "planner", "planner_options", "plan", "scatter", "discipline", "failover")
_CHECKED_TOGETHER = ("policy_options", "planner_options", "scatter")
"""Options whose validity depends on other options, which another source may set."""


def choose_options(options: RunOptions | None, fields: RunFields) -> RunOptions:
    """The options that a caller passed, as one object or as keywords; raises BadOption for both."""
    if options is None:
        return RunOptions(**fields)
    if fields:
        raise BadOption(
            f"options= and {', '.join(fields)}= are both given. Put all of them into options=RunOptions(...)."
        )
    if not isinstance(options, RunOptions):
        raise BadOption(f"options must be RunOptions, got {type(options).__name__}.")
    return options


def option_paths() -> tuple[str, ...]:
    """All options in the order of the fields, nested ones as GROUP.FIELD."""
    return tuple(_paths())


def _paths() -> Iterator[str]:
    for name in RunOptions.field_names():
        if name in GROUPS:
            yield from (f"{name}.{nested}" for nested in GROUPS[name].field_names())
        else:
            yield name


def options_by_field(values: Mapping[str, object]) -> RunOptions:
    """Options from field names without their group, as flags and variables use them; None means not given.

    >>> options_by_field({"ports": "29600", "site": None}).transport.ports
    '29600'
    """
    paths = {path.rpartition(".")[2]: path for path in option_paths()}
    return _build({paths[name]: (value, "") for name, value in values.items() if value is not None})


def value_at(options: RunOptions, path: str) -> object:
    """The value of an option by its path.

    >>> value_at(RunOptions(), "tolerance.patience_s")
    30.0
    """
    group, _, field = path.rpartition(".")
    return getattr(getattr(options, group) if group else options, field)


# --- sources ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The value of an option and its origin."""

    name: str
    """Its path: `transport.ports`."""
    value: object
    origin: str
    """`argument`, `default`, `scheme NAME`, or the name of the variable or file."""


Entries = dict[str, tuple[Any, str]]
"""Values and their origins, by path."""


def resolve_options(
    given: RunOptions | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    default: RunOptions | None = None,
) -> tuple[RunOptions, tuple[Setting, ...]]:
    """The options of a run merged from all sources, and the origin of each in the order of the fields.

    `default` replaces the defaults of the fields for options that no source sets. `environment` is os.environ and
    `folder` the working directory unless given. Raises BadOption and names the source of an invalid option.
    """
    environment = os.environ if environment is None else environment
    sources = (
        {} if default is None else _entries(default, "default"),
        _from_file(environment, folder or Path.cwd()),
        _from_environment(environment),
        {} if given is None else _entries(given, "argument"),
    )
    entries: Entries = {}
    for source in sources:
        entries = _merged(entries, source)
    options = _build(entries)
    options.check_combination()
    parts = set[str]()
    if options.scheme is not None:
        parts = {*SCHEME_PARTS, *make_scheme(options.scheme).run_options} - {"plan"}
    settings = (
        Setting(
            path,
            value_at(options, path),
            entries[path][1] if path in entries else f"scheme {options.scheme}" if path in parts else "default",
        )
        for path in option_paths()
    )
    return options, tuple(settings)


def _entries(options: RunOptions, origin: str) -> Entries:
    """The options that this object was constructed with."""
    return {
        path: (value_at(options, path), origin)
        for path in option_paths()
        if path.partition(".")[0] in options.given
        and ("." not in path or path.partition(".")[2] in getattr(options, path.partition(".")[0]).given)
    }


def _merged(lower: Entries, upper: Entries) -> Entries:
    if upper.get("scheme", (None, ""))[0] is not None:
        lower = {path: entry for path, entry in lower.items() if path not in SCHEME_PARTS}
    return {**lower, **upper}


def _build(entries: Entries) -> RunOptions:
    given: dict[str, Any] = {}
    for path, (value, _) in entries.items():
        group, _, field = path.rpartition(".")
        (given.setdefault(group, {}) if group else given)[field] = value
    return RunOptions(**given)


def _from_environment(environment: Mapping[str, str]) -> Entries:
    paths = {_as_variable(path): path for path in option_paths()}
    entries: Entries = {}
    for variable in sorted(environment):
        value = environment[variable]
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or value == "":
            continue
        if variable not in paths:
            name = variable.removeprefix(PREFIX).lower()
            new = {**RENAMED, "awareness": "awareness.measure"}.get(name, "hooks.")
            if not new.startswith("hooks."):
                raise BadOption(f"{variable} has a new name: set {_as_variable(new)}.")
            known = tuple(path.rpartition(".")[2] for path in paths.values())
            raise BadOption(f"{variable}: {UnknownName('option', name, known)} `tradewind config` shows them all.")
        entries[paths[variable]] = _checked(paths[variable], value, variable)
    return entries


def _from_file(environment: Mapping[str, str], folder: Path) -> Entries:
    named = environment.get(FILE_VARIABLE)
    path = Path(named) if named else folder / FILE
    if not named and not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadOption(f"{path}: cannot be read ({error.strerror}). Correct {FILE_VARIABLE}.") from None
    except ValueError as error:
        raise BadOption(f"{path}: not valid TOML: {error}. Correct it.") from None
    entries: Entries = {}
    for name, value in _flat(found):
        if name not in option_paths():
            new = {**_IN_GROUPS, **RENAMED, "awareness": "awareness.measure"}.get(name, "hooks.")
            if not new.startswith("hooks."):
                raise BadOption(f"{path}: {name} has a new place: write {_as_file_entry(new)}.")
            raise BadOption(f"{path}: {UnknownName('option', name, option_paths())} `tradewind config` shows them all.")
        entries[name] = _checked(name, value, str(path))
    return entries


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a file, with tables as TABLE.NAME; `-` and `_` are equivalent in names."""
    for key, value in found.items():
        name = key.replace("-", "_")
        if name in GROUPS and isinstance(value, dict):
            yield from ((f"{name}.{inner.replace('-', '_')}", of) for inner, of in value.items())
        else:
            yield name, value


def _checked(path: str, value: object, origin: str) -> tuple[object, str]:
    """The value of one option, validated by itself where possible; errors name the origin."""
    try:
        if path in _CHECKED_TOGETHER:
            return RunOptions.convert_field(path, value), origin
        return value_at(_build({path: (value, origin)}), path), origin
    except InputError as error:
        raise BadOption(f"{origin}: {error}") from None


def _converted_group(name: str, value: object) -> OptionGroup:
    kind = GROUPS[name]
    if isinstance(value, Mapping):
        return kind(**value)
    if not isinstance(value, kind):
        example = "measure" if name == "awareness" else kind.field_names()[0]
        raise BadOption(f"{name} must be {kind.__name__}({example}=...), got {value!r}.")
    return value


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadOption(f"expected key=value, separated by commas, got {text!r}.")
    return key.strip(), value.strip()


# --- files -----------------------------------------------------------------------------------------------------------


def load_network(named: Network | Path | str | None) -> Network | None:
    """The network that an option names, from the catalog or a file; None stays None."""
    if named is None or isinstance(named, Network):
        return named
    from tradewind import catalog

    return catalog.load_network(named)


def load_plan(path: str | Path) -> Plan:
    """The plan in a file; raises BadPlan if it cannot be read."""
    try:
        return plan_from_json(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise BadPlan(f"cannot read plan {path}: {error.strerror}. Check the path.") from None
