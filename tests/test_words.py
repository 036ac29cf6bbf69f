"""One word for one thing: what people read uses the terms of the glossary, not their synonyms."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
GLOSSARY: Final = ROOT / "docs" / "glossary.md"
PAGES: Final = [
    path
    for folder in (".", "docs", "deploy", "examples")
    for pattern in ("*.md", "*.yaml", "*.toml")
    for path in sorted((ROOT / folder).glob(pattern))
    if path != GLOSSARY
]
PACKAGES: Final = ("controller", "gridchase", "policies", "publishers")


def synonyms() -> dict[str, str]:
    """Return the words that are not used, each with the one that is."""
    table = GLOSSARY.read_text(encoding="utf-8").split("| not | but |")[1]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    return {word: term for words, term in rows for word in words.split(", ")}


WORDS: Final = re.compile("|".join(rf"\b{re.escape(word)}s?(?!\w)" for word in synonyms()), re.IGNORECASE)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, or the texts of a module that are no docstrings, each with its line number."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_the_glossary_names_what_is_not_used() -> None:
    assert synonyms()["power cap"] == "power limit"
    assert WORDS.search("two Power Caps") is not None
    assert WORDS.search("a power capacity") is None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_uses_the_words_of_the_glossary(path: Path) -> None:
    assert [(line, found[0]) for line, text in texts(path) for found in WORDS.finditer(text)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_programs_print_the_words_of_the_glossary(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    found = [
        f"{path}:{line}: {word[0]}" for path in modules for line, text in texts(path) for word in WORDS.finditer(text)
    ]
    assert found == []
