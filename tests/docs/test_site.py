"""The documentation as a site: every page is in the navigation, links lead somewhere, generated pages are current.

`make docs` builds it with MkDocs, which is not needed here.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "data" not in path.parts)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FIRST_SCREEN_LINES = 40
QUESTIONS = 26
WITH_LONG_LINES = ("reproduction.md",)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h)) for h in HEADING.findall(bare(text))]
    return {re.sub(r"[\s]+", "-", title.strip().lower()) for title in plain}


def bare(text: str) -> str:
    """The page without blocks of code."""
    return FENCED.sub("", text)


def links(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Links of a page inside the repository: as written, file, anchor."""
    for target in LINK.findall(bare(path.read_text())):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            yield target, (path.parent / name).resolve() if name else path, anchor


def dead_links(path: Path) -> list[str]:
    """What is wrong with the links of a page."""
    return [
        f"{path.relative_to(ROOT)}: {written}"
        for written, target, anchor in links(path)
        if not target.exists() or (anchor and anchor not in anchors(target.read_text()))
    ]


def navigation() -> list[str]:
    """The pages that mkdocs.yml names, in order."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    return re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", nav, re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert not dead_links(page)


def test_dead_links_and_anchors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("# Top\n## What works\n[a](#what-works) [b](#nothing) [c](c.md)\n```\n[d](d.md)\n```\n")
    assert dead_links(page) == ["a.md: #nothing", "a.md: c.md"]


def test_pages_that_sources_name_exist() -> None:
    sources = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    named = [
        (path, name)
        for path in [*sources, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
        for name in re.findall(r"(?<![\w/])docs/[\w/.-]+\.(?:md|py|svg|png)\b", path.read_text())
    ]
    missing = [
        f"{path.relative_to(ROOT)}: {name}" for path, name in named if "NAME" not in name and not (ROOT / name).exists()
    ]
    assert not missing, missing


def test_every_page_is_in_the_navigation() -> None:
    named = navigation()
    assert len(named) == len(set(named))
    there = {path.relative_to(DOCS).as_posix() for path in PAGES}
    assert not there - set(named), f"add to `nav` in mkdocs.yml: {sorted(there - set(named))}"
    assert not set(named) - there, f"mkdocs.yml names pages that do not exist: {sorted(set(named) - there)}"


def clicks_to(start: Path, most: int) -> dict[Path, int]:
    """How many clicks each page is away."""
    found, edge = {start: 0}, [start]
    for click in range(1, most + 1):
        edge = [
            target
            for page in edge
            for _, target, _ in links(page)
            if target.suffix == ".md" and target.is_relative_to(DOCS) and target not in found
        ]
        found.update(dict.fromkeys(edge, click))
    return found


def answers() -> list[tuple[str, Path, str]]:
    """Questions with where they are answered."""
    page = DOCS / "questions.md"
    asked = re.findall(r"^\d+\. (.*(?:\n {3,}.*)*)", page.read_text(), re.MULTILINE)
    found = []
    for question in asked:
        targets = LINK.findall(question)
        assert targets, question
        for target in targets:
            name, _, anchor = target.partition("#")
            found.append((question.partition("?")[0], (page.parent / name).resolve(), anchor))
    return found


def test_there_are_questions_and_each_has_an_answer() -> None:
    assert len({question for question, _, _ in answers()}) == QUESTIONS


@pytest.mark.parametrize(("question", "page", "anchor"), answers())
def test_an_answer_is_two_clicks_away_and_on_the_first_screen(question: str, page: Path, anchor: str) -> None:
    assert clicks_to(DOCS / "index.md", 2).get(page.resolve(), 3) <= 2, question
    text = page.read_text()
    if anchor:
        assert anchor in anchors(text), question
        return
    body = [line for line in bare(text).splitlines()[:FIRST_SCREEN_LINES] if line and not line.startswith(("#", "!"))]
    assert sum(len(line.split()) for line in body) >= 30, f"{page.name} does not answer on its first screen"


def test_guides_hold_no_measurements_of_the_day() -> None:
    stale = re.compile(r"\bload of \d|\bload \d|\bat a load\b|nothing else running|shared cores", re.IGNORECASE)
    for page in PAGES:
        if page.relative_to(DOCS).parts[0] not in ("benchmarks", "decisions"):
            assert not stale.search(page.read_text()), page.relative_to(ROOT)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
        if page.name not in WITH_LONG_LINES
    ],
    ids=lambda path: path.name,
)
def test_lines_are_at_most_120_characters_long(page: Path) -> None:
    """But tables, which have one line for each row, and what commands print."""
    long = [
        line
        for line in bare(page.read_text()).splitlines()
        if len(line) > 120 and not line.lstrip().startswith("|") and not line.startswith("    ")
    ]
    assert not long, long


def test_every_result_says_when_where_with_what_and_how_it_was_measured() -> None:
    for page in sorted((DOCS / "benchmarks").glob("*.md")):
        if page.name != "index.md":
            text = page.read_text()
            missing = [field for field in ("date", "commit", "machine", "command") if f"\n| {field} | " not in text]
            assert not missing, f"{page.name} lacks {missing}"


def test_the_headline_of_the_readme_is_what_was_measured() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    measured = json.loads((DOCS / "benchmarks" / "data" / "wan.json").read_text())["data"]["networks"]
    rows = [{row["system"]: row for row in one["rows"]}["tradewind auto"] for one in measured if one["sites"] >= 4]
    assert {one["sites"] for one in measured} == {2, 4, 6, 8}

    def span(key: str, form: str, unit: str = "") -> str:
        values = [row[key] for row in rows]
        return f"{min(values):{form}}{unit} to {max(values):{form}}{unit}"

    assert f"**{span('speedup_over_gloo', '.0f')} times as fast as Gloo on 4 to 8 sites**" in text
    assert f"{span('speedup_over_gloo_best_order', '.1f')} times" in text
    assert f"at {span('of_limit', '.0%')} of" in text
    runs = json.loads((DOCS / "benchmarks" / "data" / "training.json").read_text())["data"]
    ours, gloo = (runs[name]["seconds"][-1] for name in ("tradewind", "gloo"))
    assert f"took {ours:.1f} s instead of {gloo:.1f} s" in text


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_the_api_page() -> None:
    import tradewind

    described = {name for _, _, names in generator().API for name in names}
    assert not set(tradewind.__all__) - described - {"__version__"}, "add it to API in docs/generate.py"


def test_generated_pages_and_pictures_are_what_the_generator_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the API page describes the PyTorch backend")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    generate = generator()
    made = {**generate.pages(), **generate.pictures()}
    differing = [str(path.relative_to(ROOT)) for path, text in made.items() if path.read_text() != text]
    assert not differing, f"run python docs/generate.py: {differing}"
    results = {path for path in made if path.parent == DOCS / "benchmarks"}
    assert results == set((DOCS / "benchmarks").glob("*.md")), "a result without stored data"
