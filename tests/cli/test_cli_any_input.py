"""Whatever is typed, the command answers with a documented exit code and without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli import tradewind
from tradewind.planning import planner, planner_names

ODD = st.text(max_size=20)
NUMBERS = st.one_of(st.integers().map(str), st.floats().map(str))
NETWORKS = st.one_of(st.sampled_from(["netstorm9", "swan", "mesh", "gscale", "missing.json", "sndlib/abilene"]), ODD)
SIZES = st.one_of(st.sampled_from(["1", "100MB", "10PB", "0", "-1", "1e300GB", "nanMB", "٣MB"]), ODD, NUMBERS)
MEMBERS = st.one_of(st.lists(st.sampled_from(["dc1", "dc2", "AS1", "NY", ""]), max_size=4).map(",".join), ODD)
OPTIONS = sorted({field.name for name in planner_names() for field in planner(name).option_fields} | {"bogus"})
VALUES = st.one_of(ODD, NUMBERS, st.sampled_from(["", "none", "true", "exact", "dc1", "1Gbps", "nan", "inf", "--json"]))
CATALOG_OPTIONS = st.tuples(st.sampled_from(["n", "seed", "min_mbps", "symmetric", "time_s", "x", ""]), VALUES)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    verb = draw(st.sampled_from(["network", "networks", "planners", "plan", "compare", "check", ""]))
    words = [verb] if draw(st.integers(0, 20)) else [draw(ODD)]
    if draw(st.integers(0, 9)):
        words.append(draw(NETWORKS))
    if verb == "plan":
        words += ["--planner", draw(st.one_of(st.sampled_from(planner_names()), ODD))]
        for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=2)):
            words += ["--" + option.replace("_", "-"), draw(VALUES)]
    if verb == "compare":
        words += ["--planners", draw(st.one_of(st.sampled_from(["ring,star", "ring,ring", ","]), ODD))]
    if verb in ("plan", "compare"):
        words += ["--bytes", draw(SIZES)] if draw(st.booleans()) else []
        words += ["--members", draw(MEMBERS)] if draw(st.booleans()) else []
    if verb not in ("networks", "planners") and draw(st.integers(0, 3)) == 0:
        words += ["--option", "=".join(draw(CATALOG_OPTIONS))]
    if draw(st.booleans()):
        words.append("--json")
    if draw(st.integers(0, 5)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(ODD))
    return words


def answers_properly(*words: object) -> None:
    result = tradewind(*words)
    assert result.exit_code in (0, 2, 3), (words, result.exit_code, result.output)
    assert "Traceback" not in result.output and "InternalError" not in result.output, (words, result.output)
    if result.exit_code == 0 and "--json" in words and "--help" not in words:
        json.loads(result.stdout)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(command_lines())
def test_any_arguments_get_an_answer(words: list[str]) -> None:
    answers_properly(*words)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "sites", "links", "src", "dst", "bandwidth_mbps"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(JSON.map(lambda data: json.dumps(data).encode()), st.binary(max_size=60)))
def test_any_file_gets_an_answer(tmp_path: Path, content: bytes) -> None:
    for name in ("network.json", "network.csv", "network.gml", "network.graphml"):
        path = tmp_path / name
        path.write_bytes(content)
        answers_properly("network", path)
    answers_properly("check", "netstorm9", tmp_path / "network.json")
