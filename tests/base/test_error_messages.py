"""Every message of an error says what is wrong, what was expected and what to do, in plain words."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tradewind
from messages import PRIVATE, problems_of
from ranks import SECRET, free_port
from tradewind.errors import InputError, TradewindError
from tradewind.network import Network, Site
from tradewind.sim import simulate

SOURCE = Path(tradewind.__file__).parent
MESH = Network("mesh", [Site(name) for name in "abc"], 1e9 * (1 - np.eye(3)))


def raised(kind: type[TradewindError]) -> Iterator[tuple[str, str]]:
    """Where an error of this kind is made from a literal text, and that text with {} for values."""
    names = {kind.__name__}
    known = [kind]
    while known:
        known = [sub for one in known for sub in one.__subclasses__() if not sub.__module__.startswith("test")]
        names |= {sub.__name__ for sub in known}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                text = literal(node.args[0])
                passed_on = node.func.id == "UnknownName" or text.endswith("{}")  # the end says what to do
                if not passed_on and len(text.replace("{}", "").split()) > 3:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def literal(node: ast.expr) -> str:
    """A text as it is written, with {} for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal(part) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=left, right=right):
            return literal(left) + literal(right)
        case _:
            return "{}"


def test_no_message_uses_words_that_have_to_be_decoded() -> None:
    found = [f"{where}: {text}" for where, text in raised(TradewindError) if PRIVATE.search(text)]
    assert not found, "\n".join(found)


def test_every_message_about_an_input_says_what_was_expected_or_what_to_do() -> None:
    messages = list(raised(InputError))
    assert len(messages) > 150
    found = [f"{where}: {text}: {problems}" for where, text in messages if (problems := problems_of(text))]
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def group() -> Iterator[tradewind.Group]:
    with tradewind.connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET) as alone:
        yield alone


CONNECT = "127.0.0.1:1"
CALLS: dict[str, tuple[Callable[[tradewind.Group], object], tuple[str, ...]]] = {
    "rank": (lambda _: tradewind.connect(CONNECT, 4, 4, secret=SECRET), ("4",)),
    "world": (lambda _: tradewind.connect(CONNECT, 0, 0, secret=SECRET), ("0",)),
    "secret": (lambda _: tradewind.connect(CONNECT, 0, 1, secret="short"), ("8",)),
    "address": (lambda _: tradewind.connect("127.0.0.1", 0, 1, secret=SECRET), ("'127.0.0.1'",)),
    "port": (lambda _: tradewind.connect("127.0.0.1:99999", 0, 1, secret=SECRET), ("99999",)),
    "planner": (lambda _: tradewind.make_plan("rign", MESH, 1000), ("'rign'", "'ring'")),
    "planner option": (lambda _: tradewind.make_plan("ring", MESH, 1000, ordr="x"), ("'ordr'",)),
    "bytes": (lambda _: tradewind.make_plan("ring", MESH, 0), ("0",)),
    "members": (lambda _: tradewind.make_plan("ring", MESH, 1000, ("a", "mars")), ("'mars'",)),
    "one member": (lambda _: tradewind.make_plan("ring", MESH, 1000, ("a",)), ("two",)),
    "network": (lambda _: tradewind.load_network("gscal"), ("'gscal'", "'gscale'")),
    "network file": (lambda _: tradewind.read_network("nowhere.csv"), ("nowhere.csv",)),
    "network option": (lambda _: tradewind.load_network("mesh", size=3), ("'size'",)),
    "bandwidth": (lambda _: Network("x", [Site("a"), Site("b")], np.array([[0.0, -1.0], [1.0, 0.0]])), ("a->b",)),
    "connections": (lambda _: tradewind.RunOptions(transport=tradewind.Transport(connections=99)), ("99",)),
    "patience": (lambda _: tradewind.RunOptions(tolerance=tradewind.Tolerance(patience_s=-1.0)), ("-1",)),
    "policy": (lambda _: tradewind.RunOptions(policy="partail"), ("'partail'", "'partial'")),
    "scheme": (lambda _: tradewind.RunOptions(scheme="crwe"), ("'crwe'", "'crew'")),
    "operation": (lambda group: group.all_reduce(np.ones(3), "avg"), ("'avg'",)),
    "dtype": (lambda group: group.all_reduce(np.array(["a"])), ("str32",)),
    "out": (lambda group: group.all_reduce(np.ones(3), out=np.ones(4)), ("4",)),
    "simulated scheme": (lambda _: simulate(MESH, "crwe", nbytes=1000, seconds=1.0), ("'crwe'",)),
}
"""A wrong call, and what its message has to name."""


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_is_answered_in_that_form(case: str, group: tradewind.Group) -> None:
    call, values = CALLS[case]
    with pytest.raises(InputError) as caught:
        call(group)
    assert not problems_of(str(caught.value), *values), str(caught.value)
