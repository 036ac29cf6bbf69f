"""The README shows what the demo prints, to the digit."""

import sys

import pytest

from tests.benchmarks.readme import README, block_of, shown


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 sums floats otherwise, which moves last digits")
def test_the_readme_shows_what_the_demo_prints() -> None:
    blocks, pictures = shown()
    text = README.read_text(encoding="utf-8")
    assert {name: block_of(text, name) for name in blocks} == blocks, "run `python -m tests.benchmarks.readme`"
    assert {path: path.read_text(encoding="utf-8") for path in pictures} == pictures
