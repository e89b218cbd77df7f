"""Planners and policies by name: ours, and plug-ins from a file, an installed distribution, or registered in Python.

A `Registry` knows the names of one kind of thing (planners, policies) and where each comes from. A name is, in this
order,

1. one of ours, from a table of `module:attribute`, which no plug-in can replace;
2. registered in this process (`tradewind.register_planner`, `tradewind.register_policy`);
3. `FILE.py:NAME`, a function or class in a file;
4. an entry point of an installed distribution (groups `tradewind.planners`, `tradewind.policies`).

What is loaded in ways 2 to 4 comes with a `Plugin`, which turns whatever goes wrong in it into a `BadPlugin` that names
the plug-in, where it comes from, and the line: a plug-in's mistake must not look like a bug of Tradewind.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

from tradewind.errors import BadOption, BadPlugin, InternalError, UnknownName
from tradewind.registry import convert_options, load_entry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_IN = "built in"
MOST_WORDS = 2000
"""Characters of a reason: it is sent to every rank of a run."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Where a planner or policy that is not ours comes from, for every message about it."""

    kind: str
    """`planner` or `policy`."""
    name: str
    """As it was asked for."""
    origin: str
    """The file, the distribution with its entry point, or the module that registered it."""

    def error(self, reason: str) -> BadPlugin:
        """The plug-in's mistake, as an error that says whose it is."""
        said = reason if len(reason) <= MOST_WORDS else f"{reason[:MOST_WORDS]} ..."
        return BadPlugin(f"{self.kind} {self.name!r} is a plug-in ({self.origin}) with a mistake: {said}")

    @contextmanager
    def blamed(self, what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Raise what goes wrong inside as the plug-in's error; `what` names the part of it that runs.

        Errors of the kinds in `passing` are raised as they are.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            if isinstance(error, (BadPlugin, *passing)):
                raise
            # What a policy asks for and cannot be is refused as if it were a bug of ours; here it is none.
            kind = "failed" if isinstance(error, InternalError) else f"raised {type(error).__name__}"
            said = f": {str(error).rstrip('.')}" if str(error) else ""
            raise self.error(
                f"{what} {kind}{said}{_place(error)}. Correct the plug-in; `tradewind --debug VERB ...` "
                "shows the traceback."
            ) from error


def _place(error: BaseException) -> str:
    """The innermost line outside Tradewind and the standard library's loader that an error came through."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f" ({error.filename}, line {error.lineno})"
    ours = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((ours, "<")) and "importlib" not in frame.filename:
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


class Registry:
    """The names of one kind of thing, ours and others', and how to load what they stand for."""

    def __init__(self, kind: str, group: str, ours: Mapping[str, str]) -> None:
        self.kind, self.group, self._ours = kind, group, ours
        self._registered: dict[str, tuple[object, Plugin]] = {}

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of ours."""
        return tuple(self._ours)

    def names(self) -> tuple[str, ...]:
        """Every name: ours, then registered ones, then entry points. Files have none until they are asked for."""
        return tuple(dict.fromkeys([*self._ours, *self._registered, *sorted(self._entry_points())]))

    def register(self, name: str, thing: object) -> None:
        """Give something a name in this process; a name that was registered before stands for the new thing."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadOption(f"{self.kind} name {name!r}: expected letters, digits, dots, dashes and underscores.")
        if name in self._ours:
            raise BadOption(f"{self.kind} {name!r} is one of Tradewind's own. Register yours under another name.")
        module = getattr(thing, "__module__", None) or "this process"
        self._registered[name] = (thing, Plugin(self.kind, name, f"registered by {module}"))

    def forget(self, name: str) -> None:
        """Undo `register`."""
        self._registered.pop(name, None)

    def find(self, name: str) -> tuple[Any, Plugin | None]:
        """What a name stands for; its module loads only now. The plug-in is None for ours."""
        if name in self._ours:
            return load_entry(self.kind, name, self._ours), None
        if name in self._registered:
            return self._registered[name]
        if is_file_reference(name):
            return _from_file(self.kind, name)
        if name.endswith(".py"):
            raise BadOption(f"{self.kind} {name!r}: a file must be followed by a name in it. Write {name}:NAME.")
        points = self._entry_points().get(name)
        if not points:
            raise UnknownName(self.kind, name, self.names())
        return self._from_entry_points(name, points)

    def ignored(self) -> list[str]:
        """Entry points that are not used because their name is one of ours, in words."""
        return [
            f"{self.kind} {name!r} of {_described(point)} is not used: Tradewind has one of that name. Rename it there."
            for name, points in sorted(self._entry_points(ours_too=True).items())
            if name in self._ours
            for point in points
        ]

    def _entry_points(self, ours_too: bool = False) -> dict[str, list[EntryPoint]]:
        from importlib.metadata import entry_points

        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            if ours_too or point.name not in self._ours:
                same = found.setdefault(point.name, [])
                if not any(point.value == other.value for other in same):  # a distribution that is listed twice
                    same.append(point)
        return found

    def _from_entry_points(self, name: str, points: list[EntryPoint]) -> tuple[Any, Plugin]:
        plugin = Plugin(self.kind, name, _described(points[0]))
        if len(points) > 1:
            both = " and ".join(sorted(map(_described, points)))
            raise plugin.error(f"{both} use the same name. Uninstall one of them.")
        with plugin.blamed(f"importing {points[0].value}"):
            return points[0].load(), plugin


def is_file_reference(name: str) -> bool:
    """Whether a name is `FILE.py:NAME`.

    >>> is_file_reference("plans/line.py:plan_line"), is_file_reference("ring"), is_file_reference("line.py")
    (True, False, False)
    """
    path, colon, attribute = name.rpartition(":")
    return bool(colon) and path.endswith(".py") and attribute.isidentifier()


def _described(point: EntryPoint) -> str:
    dist = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"entry point {point.value}{dist}"


def _from_file(kind: str, name: str) -> tuple[Any, Plugin]:
    written, _, attribute = name.rpartition(":")
    plugin = Plugin(kind, name, f"file {written}")
    module = _load_file(Path(written).expanduser(), plugin)
    if not hasattr(module, attribute):
        raise plugin.error(f"{written} defines no {attribute!r}. Correct the name after the colon.")
    return getattr(module, attribute), plugin


class _PluginFiles(MetaPathFinder):
    """Lets `import_module` load plug-ins' files, once each, however many threads ask, by names that only they have."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """How to load a plug-in's file."""
        found = self.paths.get(fullname)
        return None if found is None else spec_from_file_location(fullname, found)


_FILES = _PluginFiles()


def _load_file(path: Path, plugin: Plugin) -> ModuleType:
    """The module in a file."""
    try:
        whole = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise plugin.error(
            f"{path} cannot be read ({reason}). Check the path, which starts at the working directory."
        ) from error
    name = f"tradewind_plugin_{path.stem}_{hashlib.sha256(str(whole).encode()).hexdigest()[:12]}".replace(".", "_")
    _FILES.paths[name] = whole
    if _FILES not in sys.meta_path:
        sys.meta_path.append(_FILES)
    with plugin.blamed(f"importing {path}"):
        return import_module(name)


def options_class(plugin: Plugin, function: Callable[..., Any], form: str, *args: object, **kwargs: object) -> type:
    """The dataclass that annotates a plug-in's parameter `options`, once its signature is known to fit.

    `form` is the signature in words, and `args` and `kwargs` are what Tradewind is going to call it with.
    """
    what = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)
        signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise plugin.error(f"{what} cannot be called as Tradewind does ({error}). Expected {form}.") from error
    try:
        hints = get_type_hints(function)
    except Exception as error:
        raise plugin.error(
            f"annotations of {what} cannot be evaluated ({type(error).__name__}: {error}). Import what they name where "
            "it is found at run time, not under `if TYPE_CHECKING`."
        ) from error
    options = hints.get("options")
    if "options" not in signature.parameters or not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise plugin.error(
            f"the parameter `options` of {what} is not annotated with a dataclass. Expected {form}; "
            "tradewind.registry.NoOptions is the dataclass for none."
        )
    return options


def plugin_options(kind: str, name: str, options: type, given: Mapping[str, object], plugin: Plugin | None) -> Any:
    """An options dataclass from names and values, as `convert_options`; a dataclass that fails is the plug-in's."""
    if plugin is None:
        return convert_options(kind, name, options, given)
    with plugin.blamed(f"{options.__name__}(...)", passing=(BadOption,)):
        return convert_options(kind, name, options, given)
