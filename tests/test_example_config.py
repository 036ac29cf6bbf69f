"""The example configurations are the reference of the keys: whole, equal to the defaults, right in their words."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from controller.cli.policy.config import load_policy_config
from controller.config import Config, load_config
from controller.web.config import WebConfig, load_web_config
from policies.service.config import PolicyConfig

DEPLOY = Path(__file__).parents[1] / "deploy"
EXAMPLE = DEPLOY / "controller.toml"
CONFIGS: dict[str, tuple[type[msgspec.Struct], Callable[[Path | None], object]]] = {
    "controller.toml": (Config, load_config),
    "policy.toml": (PolicyConfig, load_policy_config),
    "web.toml": (WebConfig, load_web_config),
}
ELSEWHERE = {"provider", "job"}
"""The chain of providers and the tables of jobs are empty by default, and shown in comments."""
_LINE = re.compile(r"(?P<key>[a-z_]+) = (?P<value>\"[^\"]*\"|\S+) *# (?P<comment>.+)")


def keys_of(file: str) -> list[tuple[str, str]]:
    """Return every key of a configuration, by section."""
    kind, _ = CONFIGS[file]
    return [(section, key) for section, keys in defaults_of(kind).items() for key in keys]


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the defaults that an example shows, by section and key."""
    return {
        section: {key: value for key, value in keys.items() if key not in ELSEWHERE}
        for section, keys in msgspec.to_builtins(kind()).items()
    }


def comments_of(file: str) -> dict[tuple[str, str], str]:
    """Return the comment of each key, by section and key."""
    comments: dict[tuple[str, str], str] = {}
    section = ""
    for line in (DEPLOY / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif (match := _LINE.fullmatch(line)) is not None:
            comments[section, match["key"]] = match["comment"]
    return comments


@pytest.mark.parametrize("file", CONFIGS)
def test_the_example_shows_every_key_with_its_default_in_the_order_of_the_records(file: str) -> None:
    tables = tomllib.loads((DEPLOY / file).read_text(encoding="utf-8"))
    assert tables == defaults_of(CONFIGS[file][0])
    assert [(section, key) for section, keys in tables.items() for key in keys] == keys_of(file)


@pytest.mark.parametrize("file", CONFIGS)
def test_the_example_is_a_valid_configuration_and_equal_to_none_at_all(file: str) -> None:
    _, load = CONFIGS[file]
    assert load(DEPLOY / file) == load(None)


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


@pytest.mark.parametrize("file", CONFIGS)
def test_every_key_of_the_example_is_explained_on_its_line(file: str) -> None:
    assert list(comments_of(file)) == keys_of(file)


@pytest.mark.parametrize(("file", "section", "key"), [(file, *key) for file in CONFIGS for key in keys_of(file)])
def test_the_explanation_of_a_number_tells_its_bounds_and_its_unit(file: str, section: str, key: str) -> None:
    hint = get_type_hints(get_type_hints(CONFIGS[file][0])[section], include_extras=True)[key]
    comment = comments_of(file)[section, key]
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
