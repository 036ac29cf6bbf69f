"""The API reference is about the public names, each once; `make check` builds it, where a warning is an error."""

import re
from pathlib import Path

import gridchase

PAGE = Path(__file__).parents[2] / "docs" / "api" / "index.md"


def test_the_reference_is_about_each_public_name_once() -> None:
    named = re.findall(r"^::: gridchase\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(gridchase.__all__)
