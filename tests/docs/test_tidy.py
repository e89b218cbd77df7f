"""Rules for the source: which layer may import which, what pure code must not use, the form of modules.

A rule checks one module's path and source, so that it applies to new folders, too; below each rule, made-up modules
show that it finds violations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tradewind.planning import planner_names

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tradewind"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

BASE = {"errors", "units", "network", "fluid", "geography", "registry", "plugins", "arithmetic", "version"}
BELOW_DRIVERS = {"base", "native", "planning", "policy", "schemes", "wire", "trace", "control", "node"}
TOOLS = {"formats", "catalog", "comparison", "figures"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "formats": {"base"},
    "catalog": {"base", "formats"},
    "planning": {"base"},
    "policy": {"base", "planning"},
    "schemes": {"base", "planning", "policy"},
    "trace": {"base"},
    "native": {"base"},
    "wire": {"base", "native", "planning", "policy"},
    "control": {"base", "planning", "policy", "schemes", "wire", "trace"},
    "node": {"base", "native", "planning", "policy", "schemes", "wire", "trace"},
    "dashboard": {"base", "trace"},
    "comparison": {"base", "planning"},
    "figures": {"base", "planning", "comparison", "trace"},
    "sim": BELOW_DRIVERS | {"catalog"},
    "runtime": BELOW_DRIVERS | {"catalog", "formats", "dashboard"},
    "advice": BELOW_DRIVERS | {"catalog", "sim"},
    "torch": BELOW_DRIVERS | TOOLS | {"sim", "runtime"},
    "lab": BELOW_DRIVERS | TOOLS | {"sim", "runtime"},
    "experiments": BELOW_DRIVERS | TOOLS | {"sim", "runtime", "torch", "lab"},
    "__main__": {"cli"},
    "cli": BELOW_DRIVERS | TOOLS | {"advice", "sim", "runtime", "torch", "lab", "experiments", "dashboard"},
}
"""The design's `base <- planning <- policy <- control, node <- {sim, runtime} <- {torch, lab, ...} <- cli`, and the
rest: `native` computes in C what numpy would; `trace` and `wire` are records and messages, which every package above
may use; `dashboard` is what a controller shows, made of records; `schemes` pairs policies with planners; `formats`,
`catalog`, `comparison` and `figures` are tools for the upper layers.
"""

PURE = {"base", "planning", "policy", "schemes", "control", "node", "wire", "sim", "advice"}
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}
SEEDED_RANDOMNESS = {"default_rng", "Generator", "BitGenerator", "SeedSequence", "PCG64"}
MEANINGLESS_NAMES = {"utils.py", "common.py", "helpers.py", "manager.py"}
MOST_LINES = 900
MACHINE_PATH = re.compile(r"""(?<![\w.~:/-])/(?:work|home|root|tmp|Users|mnt|opt)/""")
USERS = sorted(path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
PRIVATE_BUT_NOT_OURS = {
    "_exit",
    "_c10d_functional",
    "_supports_reconfigure",
    "_get_reconfigure_handle",
    "_reconfigure",
    "_DistTestBase",
    "_compiled_flex_attn",
    "_compiled_create_block_mask",
}
"""Names of `os` and `torch` that tests and benchmarks may use."""
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def layer_of(module: str) -> str:
    """The layer of a module, given by its path inside the package: `planning/ring.py`, `units.py`."""
    top = PurePosixPath(module).parts[0].removesuffix(".py")
    return "base" if top in BASE else top


def imports(module: str, source: str) -> Iterator[str]:
    """Full names of all imports of a module, anywhere in the file, with relative imports resolved."""
    package = ("tradewind", *PurePosixPath(module).parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def import_direction_problems(module: str, source: str) -> Iterator[str]:
    if module == "__init__.py":
        return  # the public package loads everything lazily, which test_cli_process checks
    layer = layer_of(module)
    if layer not in MAY_IMPORT:
        yield f"{module}: the layer {layer!r} is missing in MAY_IMPORT; add what it may import"
        return
    for name in imports(module, source):
        parts = name.split(".")
        if parts[0] != "tradewind":
            continue
        target = layer_of(parts[1]) if len(parts) > 1 else ""
        if target == layer or target in MAY_IMPORT[layer]:
            continue
        if target not in MAY_IMPORT and layer == "cli":
            continue  # a name of the public package, such as __version__
        yield f"{module}: {layer} must not import {name}"


def purity_problems(module: str, source: str) -> Iterator[str]:
    if layer_of(module) not in PURE:
        return
    for name in imports(module, source):
        if name.split(".")[0] in IMPURE_MODULES:
            yield f"{module}: pure code must not import {name}"
        if name.startswith("numpy.random.") and name.split(".")[2] not in SEEDED_RANDOMNESS:
            yield f"{module}: {name} is global randomness; take a seeded Generator as an argument"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            if node.attr not in SEEDED_RANDOMNESS:
                yield f"{module}: np.random.{node.attr} is global randomness; take a seeded Generator as an argument"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("default_rng") and not node.args:
            yield f"{module}: default_rng() without a seed differs from run to run"


def shape_problems(module: str, source: str) -> Iterator[str]:
    name = PurePosixPath(module).name
    if name in MEANINGLESS_NAMES:
        yield f"{module}: {name} does not describe its contents"
    lines = source.count("\n")
    if lines > MOST_LINES:
        yield f"{module}: {lines} lines; split it (at most {MOST_LINES})"
    if not ast.get_docstring(ast.parse(source)):
        yield f"{module}: has no docstring"
    for number, line in enumerate(source.splitlines(), start=1):
        if MACHINE_PATH.search(line):
            yield f"{module}:{number}: names a path of one machine"
        if UNFINISHED.search(line):
            yield f"{module}:{number}: is unfinished"


def thread_problems(module: str, source: str) -> Iterator[str]:
    if layer_of(module) not in ("runtime", "torch") or module == "runtime/threads.py":
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread", "threading.Timer"):
            yield f"{module}:{node.lineno}: use start_thread of runtime/threads.py, so that it ends before Python does"


def private_access_problems(path: str, source: str) -> Iterator[str]:
    """Uses of private names: tests, benchmarks and examples use `Group.stats()`, `Controller.snapshot()`, `Hooks`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names = [] if ast.unparse(node.value) in ("self", "cls", "super()") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if (node.module or "").startswith("tradewind")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "getattr", "delattr")):
            said = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            names = [text.rpartition(".")[2] for text in said[:1]]
        else:
            continue
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in PRIVATE_BUT_NOT_OURS:
                yield f"{path}:{node.lineno}: uses the private name {name}; use or add a public one"


RULES = (import_direction_problems, purity_problems, shape_problems, thread_problems)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_all_modules_keep_the_rule(rule: object) -> None:
    assert callable(rule)
    problems = [problem for module, path in MODULES.items() for problem in rule(module, path.read_text())]
    assert not problems, "\n".join(problems)


def test_tests_benchmarks_and_examples_use_public_names_only() -> None:
    problems = [p for path in USERS for p in private_access_problems(str(path.relative_to(ROOT)), path.read_text())]
    assert len(USERS) > 100 and not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "statement",
    [
        "port = group._worker.port",
        "group.controller._changed.notify_all()",
        "from tradewind.sim.chunks.changing import _Driver",
        "def f():\n    from tradewind.lab import _secret",
        "monkeypatch.setattr(worker, '_apply', twice)",
        "monkeypatch.setattr('tradewind.sim.worker.Worker._apply', twice)",
        "getattr(group, '_server')",
    ],
)
def test_private_names_are_found(statement: str) -> None:
    assert list(private_access_problems("tests/x.py", statement))


@pytest.mark.parametrize(
    "statement",
    ["self._made = 1", "super()._told(x)", "os._exit(0)", "x.__class__", "stats.port", "from torch.x import _y"],
)
def test_public_names_and_own_attributes_are_fine(statement: str) -> None:
    assert not list(private_access_problems("tests/x.py", statement))


def test_there_are_modules_to_look_at() -> None:
    assert {"network.py", "planning/plan.py", "cli/__init__.py"} <= set(MODULES)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("units.py", "from tradewind.network import Network\nfrom tradewind.planning import plan"),
        ("planning/new.py", "from tradewind.policy import events"),
        ("planning/new.py", "from tradewind.catalog import load_network"),
        ("planning/new.py", "import tradewind.sim.clock"),
        ("planning/new.py", "from ..runtime import driver"),
        ("planning/new.py", "def f():\n    from tradewind.cli import app"),
        ("policy/new.py", "from tradewind import control"),
        ("policy/new.py", "from tradewind import load_network"),
        ("control/new.py", "from tradewind.node import chunks"),
        ("node/new.py", "from tradewind.sim import clock"),
        ("sim/new.py", "from tradewind.runtime import driver"),
        ("runtime/new.py", "from tradewind.sim import clock"),
        ("runtime/new.py", "from tradewind.torch import backend"),
        ("lab/new.py", "from tradewind.torch import backend"),
        ("dashboard/new.py", "from tradewind.sim import clock"),
        ("experiments/new.py", "from tradewind.cli import app"),
        ("newfolder/new.py", "import math"),
    ],
)
def test_imports_against_the_direction_are_found(module: str, statement: str) -> None:
    assert list(import_direction_problems(module, statement))


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        (
            "planning/new.py",
            "from tradewind.network import Network\nfrom . import plan\nfrom ..units import format_rate",
        ),
        ("policy/new.py", "from tradewind.planning.plan import Plan"),
        ("sim/new.py", "from tradewind.node import chunks\nfrom tradewind.control import controller"),
        ("runtime/new.py", "from tradewind.wire import messages"),
        ("torch/new.py", "import torch\nfrom tradewind.runtime import driver"),
        ("cli/new.py", "from tradewind import __version__\nfrom tradewind.dashboard import serve"),
    ],
)
def test_imports_along_the_direction_are_fine(module: str, statement: str) -> None:
    assert not list(import_direction_problems(module, statement))


@pytest.mark.parametrize(
    "module", ["planning/x.py", "policy/x.py", "control/x.py", "node/x.py", "wire/x.py", "sim/x.py"]
)
@pytest.mark.parametrize(
    "statement",
    [
        "import time",
        "from time import monotonic",
        "import os.path",
        "import socket, threading",
        "import asyncio",
        "import random",
        "from numpy.random import uniform",
        "import numpy as np\nx = np.random.uniform()",
        "import numpy as np\nrng = np.random.default_rng()",
    ],
)
def test_impure_code_is_found_in_pure_layers(module: str, statement: str) -> None:
    assert list(purity_problems(module, statement))
    assert not list(purity_problems("runtime/x.py", statement))


def test_a_seeded_generator_is_pure() -> None:
    source = "import numpy as np\ndef f(rng: np.random.Generator): return np.random.default_rng(7)"
    assert not list(purity_problems("sim/x.py", source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("planning/utils.py", '"""Things."""'),
        ("planning/x.py", "x = 1"),
        ("planning/x.py", '"""Long."""\n' + "x = 1\n" * MOST_LINES),
        ("planning/x.py", '"""Paths."""\nP = "/home/user/data"'),
        ("planning/x.py", '"""Later."""\nx = 1  # TODO'),
    ],
)
def test_untidy_modules_are_found(module: str, source: str) -> None:
    assert list(shape_problems(module, source))


def test_threads_that_nothing_ends_are_found() -> None:
    assert list(thread_problems("runtime/x.py", "import threading\nthreading.Thread(target=print).start()"))
    assert not list(thread_problems("runtime/x.py", "from tradewind.runtime.threads import start_thread"))


def test_every_planner_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "reference" / "planners.md").read_text()
    missing = [name for name in planner_names() if f"`{name}`" not in text]
    assert not missing, f"docs/reference/planners.md does not mention {missing}"


def test_the_folder_map_is_true() -> None:
    placed = set(re.findall(r"^\| `([\w.]+)/?` \|", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.M))
    there = {PurePosixPath(module).parts[0] for module in MODULES} - {"__init__.py"}
    assert there == placed, "docs/ARCHITECTURE.md and the folders differ"


def test_documents_name_no_path_of_one_machine() -> None:
    found = [
        f"{document.relative_to(ROOT)}: {line.strip()}"
        for document in DOCUMENTS
        for line in document.read_text().splitlines()
        if MACHINE_PATH.search(line)
    ]
    assert not found, found


# --- words ---------------------------------------------------------------------------------------------------------

UNNAMED = re.compile(r"(?<![a-zA-Z])(somebody|nobody|everybody|whoever|anybody)(?![a-zA-Z])", re.IGNORECASE)
"""Ranks, members, callers and controllers have names (docs/glossary.md)."""
WITH_STORED_WORDS = ("docs/benchmarks/reproduction.md",)
"""Made from results that were saved with their remarks."""
SUBJECT_TO_WORDS = sorted(
    path
    for folder in ("src", "tests", "benchmarks", "examples", "docs")
    for suffix in ("*.py", "*.md")
    for path in (ROOT / folder).rglob(suffix)
)


def unnamed(text: str) -> list[str]:
    """Lines that speak of ranks without naming their role."""
    return [line.strip() for line in text.splitlines() if UNNAMED.search(line)]


def test_ranks_are_named_by_their_role() -> None:
    allowed = {"tests/support/messages.py", "tests/docs/test_tidy.py", *WITH_STORED_WORDS}
    for path in (*SUBJECT_TO_WORDS, *ROOT.glob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        assert name in allowed or not (found := unnamed(path.read_text())), f"{name}: {found}"


def test_words_that_name_no_role_are_found() -> None:
    assert unnamed("fine\nwaiting_for_everybody = 1\nNobody waits") == ["waiting_for_everybody = 1", "Nobody waits"]


# --- size of functions ---------------------------------------------------------------------------------------------

MAX_FUNCTION_LINES = 70
MAX_PARAMETERS = 8
LONG_BY_NATURE = {"cli"}
"""A verb's function declares its flags, a few lines for each."""
WIDE_BY_NATURE = {
    "experiments/demo/run.py": "run_demo",
    "planning/trees/forest.py": "forest_plan",
    "sim/__init__.py": "simulate",
    "sim/fluid/store_and_forward.py": "__init__",
    "sim/recorder.py": "add",
    "torch/synchronizer.py": "__init__",
}
"""Functions that take a table's columns, or the public options of a class."""


def oversized(module: str, source: str) -> Iterator[str]:
    """Functions that are too long, or take too many parameters, to be held in mind."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or layer_of(module) in LONG_BY_NATURE:
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        taken = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        parameters = len([name for name in taken if name not in ("self", "cls")])
        if lines > MAX_FUNCTION_LINES:
            yield f"{node.name} has {lines} lines, the most is {MAX_FUNCTION_LINES}"
        if parameters > MAX_PARAMETERS and WIDE_BY_NATURE.get(module) != node.name:
            yield f"{node.name} takes {parameters} parameters, the most is {MAX_PARAMETERS}: use a dataclass"


def test_functions_can_be_held_in_mind() -> None:
    for name, path in MODULES.items():
        assert not (found := list(oversized(name, path.read_text()))), f"{name}: {found}"


def test_functions_that_are_too_large_are_found() -> None:
    wide = f"def f({', '.join(f'a{k}' for k in range(9))}): pass"
    assert [text.split(",")[0] for text in oversized("sim/x.py", wide)] == ["f takes 9 parameters"]
    assert list(oversized("sim/x.py", "def f():\n" + "    pass\n" * 70)) == ["f has 71 lines, the most is 70"]
