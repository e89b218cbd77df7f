"""A fingerprint of the code that an experiment judges, so that a result older than its code is recognised.

Comments, docstrings and formatting do not count: only what the code does.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

from tradewind.experiments.papers import LIVE

_PACKAGE = Path(__file__).parents[2]
_TREES = ("planning/trees", "planning/chunking.py", "planning/cost.py")
_NOT_RUN = ("wire/codecs.py",)
"""No experiment encodes what it sends."""
_CORE = ("planning", "network.py", "fluid.py", "policy", "control", "node", "schemes.py")


def judged_code(name: str) -> str:
    """The fingerprint, as 12 hexadecimal digits, of the packages that the experiment `name` runs.

    MTREE's figures and NetStorm's first compare plans; others run the controller and the nodes in the simulator, or
    live: NetStorm's on arrays, trainings with PyTorch.
    """
    if name.startswith("mtree/") or name in ("netstorm/fig1", "reasons/mtree"):
        return _fingerprint(_TREES)
    if not name.endswith(LIVE):
        return _fingerprint((*_CORE, "sim"))
    trains = not name.startswith(("netstorm/", "tradewind/changing/"))
    return _fingerprint((*_CORE, "runtime", "wire", "lab", *(("torch",) if trains else ())))


def all_code() -> str:
    """The fingerprint of the whole package, experiments included."""
    return _fingerprint((".",))


@cache
def _fingerprint(parts: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for part in parts:
        place = _PACKAGE / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = path.relative_to(_PACKAGE).as_posix()
            if name in _NOT_RUN and parts != (".",):
                continue
            found.update(name.encode())
            found.update(what_it_does(path.read_text()).encode())
    return found.hexdigest()[:12]


def what_it_does(source: str) -> str:
    """The source without comments, docstrings and formatting.

    >>> what_it_does("def f():\\n    '''A.'''\\n    return 1") == what_it_does("def f(): return 1  # one")
    True
    >>> what_it_does("f(1)")  # the same with every version of Python
    "Module(body=[Expr(value=Call(func=Name(id='f',ctx=Load()),args=[Constant(value=1)]))])"
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return _told(tree)


def _told(value: object) -> str:
    """A syntax tree as text, without empty fields, of which versions of Python have different ones."""
    if isinstance(value, list):
        return f"[{','.join(map(_told, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = (f"{name}={_told(field)}" for name, field in ast.iter_fields(value) if field not in (None, []))
    return f"{type(value).__name__}({','.join(fields)})"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
