"""The example configuration is the reference of the keys: whole, equal to the defaults, right in its words."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
import pytest

from controller.config import Config, cross_key_faults, load_config, with_node_defaults

EXAMPLE = Path(__file__).parents[1] / "deploy" / "controller.toml"
DEFAULTS = {
    section: {key: value for key, value in keys.items() if key not in {"provider", "job"}}
    for section, keys in msgspec.to_builtins(Config()).items()
}
"""All but the chain of providers and the tables of jobs, which are empty, and shown in comments."""
KEYS = [(section, key) for section, keys in DEFAULTS.items() for key in keys]
_LINE = re.compile(r"(?P<key>[a-z_]+) = (?P<value>\"[^\"]*\"|\S+) *# (?P<comment>.+)")


def _comments() -> dict[tuple[str, str], str]:
    """Return the comment of each key, by section and key."""
    comments: dict[tuple[str, str], str] = {}
    section = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif (match := _LINE.fullmatch(line)) is not None:
            comments[section, match["key"]] = match["comment"]
    return comments


def test_the_example_shows_every_key_with_its_default_in_the_order_of_the_records() -> None:
    tables = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert tables == DEFAULTS
    assert [(section, key) for section, keys in tables.items() for key in keys] == KEYS


def test_the_example_is_a_valid_configuration_and_equal_to_none_at_all() -> None:
    assert load_config(EXAMPLE) == load_config(None) == with_node_defaults(Config())
    assert cross_key_faults(Config()) == []


def test_the_chain_in_the_comments_is_a_valid_one(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace('kind = "energy"', 'kind = "carbon"')
    chain = re.sub(r"(?m)^# (?=\[\[|name|zone|token_file)", "", text)
    (tmp_path / "controller.toml").write_text(chain, encoding="utf-8")
    config = load_config(tmp_path / "controller.toml")
    assert [provider.name for provider in config.signal.provider] == ["neso", "electricity-maps"]


def test_the_tables_of_jobs_in_the_comments_are_valid_ones(tmp_path: Path) -> None:
    tables = re.sub(
        r"(?m)^# (?=\[\[plan|name = \"(resnet|night)|max_slow|objective|deadline)", "", EXAMPLE.read_text("utf-8")
    )
    (tmp_path / "controller.toml").write_text(tables, encoding="utf-8")
    plan = load_config(tmp_path / "controller.toml").plan
    assert plan.rules_of("resnet50").max_slowdown == 1.1
    assert plan.rules_of("nightly-bert").deadline == "8h"
    assert plan.rules_of("another").objective == "slowdown"


def test_every_key_of_the_example_is_explained_on_its_line() -> None:
    assert list(_comments()) == KEYS


@pytest.mark.parametrize(("section", "key"), KEYS, ids=[f"{section}.{key}" for section, key in KEYS])
def test_the_explanation_of_a_number_tells_its_bounds_and_its_unit(section: str, key: str) -> None:
    hint = get_type_hints(get_type_hints(Config)[section], include_extras=True)[key]
    comment = _comments()[section, key]
    kind, *metas = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    bounds = [
        bound
        for meta in metas
        for bound in (meta.ge, meta.gt, meta.le, meta.lt)
        if bound is not None and kind in {int, float}
    ]
    assert [
        f"{bound:g}" for bound in bounds if not re.search(rf"(?<![\w.]){re.escape(f'{bound:g}')}(?!\w)", comment)
    ] == []
    assert kind is not float or re.match(r"\[.+\] ", comment), "a number has its unit in brackets"
