"""The configuration: every fault at once, each with its path, value and bound; never a traceback."""

import contextlib
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import (
    Config,
    PlanConfig,
    cross_key_faults,
    deadline_s,
    default_state_dir,
    load_config,
    load_for_restore,
)
from controller.errors import ConfigError
from policies.providers.catalogue import CATALOGUE
from publishers.shared.toml_config import build_record

AVERAGE = '{name="csv", path="a.csv", zone="DE"}'
METER = '{name="mqtt", topic="site/price", zone="lab", kind="price", unit="EUR/kWh"}'
ECHO = METER.replace("site/price", "gridchase/v1/grid/lab/price")
MARGINAL = '{name="csv", path="b.csv", zone="DE", kind="marginal"}'


def faults_of(*overrides: str, path: Path | None = None) -> list[str]:
    """Return the faults that loading reports."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value.faults


def write(path: Path, text: str) -> Path:
    """Return a configuration file with this text."""
    file = path / "controller.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_the_defaults_apply_and_the_node_is_named_after_its_host() -> None:
    config = load_config(None)
    assert msgspec.structs.replace(config, node=Config().node) == Config()
    assert config.node.name
    assert set(socket.gethostname()) - set(config.node.name) <= set(socket.gethostname())
    assert config.node.state_dir == str(default_state_dir())


def test_the_state_directory_of_a_user_is_below_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ada/state")
    assert default_state_dir() == Path("/home/ada/state/gridchase")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_state_dir() == Path("/home/ada/.local/state/gridchase")


def test_the_state_directory_of_root_is_below_var_lib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_state_dir() == Path("/var/lib/gridchase")


def test_a_host_name_with_odd_characters_becomes_a_valid_node_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpü/box #1" + "x" * 80)
    name = load_config(None).node.name
    assert len(name) == 64
    assert load_config(None, [f"node.name={name}"]).node.name == name


def test_a_file_is_read_and_overrides_win_over_it(tmp_path: Path) -> None:
    file = write(tmp_path, '[plan]\nperiod_s = 60\n[node]\nname = "a40-1"\n')
    config = load_config(file, ["plan.period_s=90", "gpu.backend=simulation", "gpu.allow_above_prior=true"])
    assert (config.plan.period_s, config.node.name) == (90.0, "a40-1")
    assert (config.gpu.backend, config.gpu.allow_above_prior) == ("simulation", True)


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    text = """
        [plan]
        eta = 1.5
        period = 60
        objective = "fastest"
        [profiler]
        step_w = 25
        step_ratio = "0.8"
        window_s = 0
        [energy]
        pue = nan
        [gird]
        zone = "DE"
    """
    faults = faults_of("http.port=70000", "nonsense", path=write(tmp_path, text))
    assert faults == [
        "--set nonsense: must be section.key=value",
        (
            "profiler.step_w: there is no such key any more: each limit is the part profiler.step_ratio of the one "
            "before; plan.step_w is another thing"
        ),
        (
            "gird: there is no such section;"
            " there are bus, node, gpu, profiler, plan, signal, energy, job, history, http, orders"
        ),
        "profiler.step_ratio = '0.8': must be a number at least 0.5 and at most 0.98",
        "profiler.window_s = 0: must be a number at least 0.1 and at most 86400",
        "plan.eta = 1.5: must be a number at least 0 and at most 1",
        "plan.period: there is no such key; did you mean period_s?",
        "plan.objective = 'fastest': must be 'slowdown' or 'eta' or 'deadline' or 'budget'",
        "energy.pue = nan: must be a number at least 1 and at most 5",
        "http.port = 70000: must be a whole number at least -1 and at most 65535",
    ]


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["gpu.min_power_limit_w=250", "gpu.max_power_limit_w=200"], "must be at most gpu.max_power_limit_w = 200"),
        (["signal.kind=carbon"], "signal.provider: is missing"),
        (["signal.kind=carbon", 'signal.provider=[{name="nobody"}]'], "signal.provider[0].name = 'nobody': must be"),
        (["signal.kind=carbon", "signal.provider=[{}]"], "signal.provider[0].name = None: must be"),
        (["signal.kind=carbon", "signal.provider=[5]"], "signal.provider[0].name = None: must be"),
        (["signal.kind=carbon", "signal.provider=csv"], "must be a list of tables, each [[signal.provider]]"),
        (["signal.kind=carbon", 'signal.provider=[{name="csv", zone="DE"}]'], "signal.provider[0].path: is missing"),
        (["signal.kind=carbon", 'signal.provider=[{name="csv", path="a.csv"}]'], "signal.provider[0].zone: is missing"),
        (["signal.kind=carbon", 'signal.provider=[{name="csv", rows=1}]'], "signal.provider[0].rows: there is no such"),
        (
            ["signal.kind=carbon", 'signal.provider=[{name="constant", value=0}]'],
            "[0].value = 0: must be a number above",
        ),
        (["signal.kind=carbon", f"signal.provider=[{MARGINAL}, {AVERAGE}]"], "mixes average and marginal"),
        (["signal.kind=price", f"signal.provider=[{ECHO}]"], "is what this controller publishes"),
        (["signal.kind=carbon", f"signal.provider=[{METER}]"], "a provider gives values of kind price"),
        ([f"signal.provider=[{AVERAGE}]"], 'signal.kind = "energy": is the same everywhere'),
        (["bus.password_file=/dev/null"], "bus.username"),
        (["bus.username=ada", "bus.password_file=/no/such"], "there is no such file"),
        (["bus.username=ada", f"bus.password_file=/{'x' * 300}"], "File name too long"),
        (["bus.ca_file=/etc/hostname"], "must start with mqtts://"),
        (["bus.url=http://broker"], "bus.url: 'http://broker' is no broker's URL"),
        (["bus.url=mqtt://broker:99999"], "bus.url: 'mqtt://broker:99999' is no broker's URL"),
        (["bus.url=mqtt://"], "bus.url: 'mqtt://' is no broker's URL"),
        (["bus.url=mqtt://ada@broker"], "set bus.username and bus.password_file"),
        (["bus.root=/grid"], "bus.root = '/grid': must be text of 1 to 128 characters, with no blank, + or # among"),
        (["bus.root=grid/#"], "bus.root = 'grid/#': must be text of 1 to 128 characters, with no blank, + or # among"),
        (["node.name=a b"], "node.name = 'a b': must be text of at most 64 characters of A-Z a-z 0-9 . _ -"),
        (["job.lease_s=0.9"], "job.lease_s = 0.9: must be a number at least 1 "),
        (["plan.period_s=0.04"], "plan.period_s = 0.04: must be a number at least 0.05 "),
        (["energy.period_s=0.04"], "energy.period_s = 0.04: must be a number at least 0.05 "),
        (["profiler.window_s=0.09"], "profiler.window_s = 0.09: must be a number at least 0.1 "),
        (["profiler.settle_s=1e99"], "at most 86400"),
        (["gpu.allow_above_prior=1"], "gpu.allow_above_prior = 1"),
        (["plan.eta=inf"], "plan.eta = inf"),
        (["bus=5.5"], "must be section.key=value"),
        (["plan.period_s"], "must be section.key=value"),
        (["node.name=a\udcff"], "must be UTF-8"),
    ],
)
def test_a_fault_says_where_it_is_and_what_would_be_right(overrides: list[str], fault: str) -> None:
    faults = faults_of(*overrides)
    assert any(fault in line for line in faults), faults


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ('plan.max_slowdown="5%"', "write 1.05"),
        ("plan.period_s=5min", "write 300"),
        ("gpu.max_power_limit_w=0.3kW", "write 300"),
        ("profiler.step_ratio=80%", "write 0.8"),
    ],
)
def test_a_value_with_a_unit_is_answered_with_the_number(override: str, advice: str) -> None:
    (fault,) = faults_of(override)
    assert fault.endswith(f": {advice}")


def test_faults_between_keys_are_reported_with_those_of_single_keys() -> None:
    faults = faults_of("bus.url=http://x", "plan.eta=2", "plan.objective=deadline", "gpu.min_power_limit_w=x")
    assert [fault.partition(" ")[0] for fault in faults] == [
        "gpu.min_power_limit_w",
        "plan.eta",
        "bus.url:",
        "plan.deadline",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ["bus.username=5", "bus.password_file=/etc/hostname"],
        ["signal.kind=carbon", 'signal.provider=[{name="nobody"}]'],
        ["plan.objective=deadline", "plan.deadline=soon"],
        ["plan.deadline=soon", 'plan.job=[{name="a", objective="deadline"}]'],
    ],
)
def test_a_wrong_key_is_not_reported_as_missing_too(overrides: list[str]) -> None:
    assert len(faults_of(*overrides)) == 1


def test_a_file_that_cannot_be_read_is_the_only_fault(tmp_path: Path) -> None:
    assert faults_of("signal.kind=carbon", path=tmp_path / "absent.toml") == [
        f"{tmp_path / 'absent.toml'}: No such file or directory"
    ]


def _patterns() -> list[tuple[type[msgspec.Struct], str]]:
    sections = [kind for kind in get_type_hints(Config).values() if isinstance(kind, type)]
    providers = [entry.settings for entries in CATALOGUE.values() for entry in entries.values()]
    return [
        (kind, key)
        for kind in dict.fromkeys([*sections, *providers])
        for key, hint in get_type_hints(kind, include_extras=True).items()
        if any(getattr(meta, "pattern", None) for meta in get_args(hint)[1:])
    ]


@pytest.mark.parametrize(("kind", "key"), _patterns(), ids=lambda part: getattr(part, "__name__", part))
def test_no_fault_shows_a_regular_expression(kind: type[msgspec.Struct], key: str) -> None:
    faults: list[str] = []
    build_record("it", kind, {key: "a b:/#"}, faults)
    fault = next(fault for fault in faults if fault.startswith(f"it.{key} ="))
    assert ": must be text of " in fault
    assert "\\" not in fault


@pytest.mark.parametrize(
    "overrides",
    [
        ["bus.url=mqtt://ada:hunter2@broker"],
        ["bus.url=mqtt://ada:hunter2@broker:99999"],
        ["bus.url=mqtt://ada:@hunter2/@broker"],
        ["bus.url=mqtt://ada:hunter2@broker", "bus.ca_file=/etc/hostname"],
        ["bus.root=mqtt://ada:hunter2@broker#"],
        ["mqtt://ada:hunter2@broker"],
    ],
)
def test_no_fault_shows_the_password_in_a_url(overrides: list[str]) -> None:
    faults = faults_of(*overrides)
    assert faults
    assert "hunter2" not in "".join(faults)


def test_a_url_in_place_of_its_section_does_not_show_its_password(tmp_path: Path) -> None:
    faults = faults_of(path=write(tmp_path, 'bus = "mqtt://ada:hunter2@broker"\n'))
    assert faults == ["bus = 'mqtt://…@broker': must be a table, [bus]"]


@pytest.mark.parametrize("text", ["[plan", "plan = 5", "[plan]\neta = \n", "\x00"])
def test_a_file_that_is_no_configuration_is_a_fault(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    assert any(str(file) in fault or fault.startswith("plan = 5: must be a table") for fault in faults_of(path=file))


def test_a_file_that_is_not_text_or_not_there_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert str(tmp_path / "binary.toml") in faults_of(path=tmp_path / "binary.toml")[0]
    assert faults_of(path=tmp_path / "absent.toml") == [f"{tmp_path / 'absent.toml'}: No such file or directory"]
    assert str(tmp_path) in faults_of(path=tmp_path)[0]


def test_a_section_that_is_no_table_takes_no_override(tmp_path: Path) -> None:
    assert faults_of("plan.eta=0.5", path=write(tmp_path, "plan = 5\n")) == ["plan = 5: must be a table, [plan]"]


def test_restore_ignores_faults_in_what_it_does_not_use(tmp_path: Path) -> None:
    text = '[node]\nstate_dir = "/srv/state"\n[plan]\neta = 7\n[http]\nprot = 1\n'
    config, faults = load_for_restore(write(tmp_path, text), ["gpu.backend=simulation"])
    assert (config.node.state_dir, config.gpu.backend, config.plan.eta) == ("/srv/state", "simulation", 0.5)
    assert [fault.partition(":")[0] for fault in faults] == ["plan.eta = 7", "http.prot"]


@pytest.mark.parametrize("override", ["gpu.backend=cuda", "node.name=a b"])
def test_restore_needs_neither_a_backend_nor_a_name_of_the_node(override: str) -> None:
    config, faults = load_for_restore(None, [override, "node.state_dir=/srv/state"])
    assert (config.node.state_dir, config.gpu.backend) == ("/srv/state", "nvml")
    assert len(faults) == 1


@pytest.mark.parametrize("text", ["[node]\nstate_dir = 5\n", "node = 5\n"])
def test_restore_rejects_a_wrong_state_directory(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="node"):
        load_for_restore(write(tmp_path, text), ["plan.eta=7"])


def test_the_defaults_have_no_fault() -> None:
    assert cross_key_faults(Config()) == []


@given(st.lists(st.text(max_size=40), max_size=4))
def test_arbitrary_overrides_are_accepted_or_rejected_by_name(overrides: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        load_config(None, overrides)


def _numbers() -> list[tuple[str, str]]:
    sections = get_type_hints(Config)
    return [
        (name, key)
        for name, section in sections.items()
        for key, hint in get_type_hints(section, include_extras=True).items()
        if get_origin(hint) is not None and get_args(hint)[0] in {int, float}
    ]


@pytest.mark.parametrize(("section", "key"), _numbers())
def test_every_number_has_bounds(section: str, key: str) -> None:
    for text in ("1e30", "-1e30", "nan"):
        assert f"{section}.{key}" in "".join(faults_of(f"{section}.{key}={text}"))


START_S = 1_000.0


def plan_of(*overrides: str) -> PlanConfig:
    """Return the plan of a configuration."""
    return load_config(None, [f"plan.{override}" for override in overrides]).plan


def plan_faults_of(*overrides: str) -> list[str]:
    """Return the faults of a plan."""
    return faults_of(*(f"plan.{override}" for override in overrides))


def test_a_job_without_a_table_follows_the_general_rules() -> None:
    plan = plan_of("max_slowdown=1.05", 'job=[{name="bert", max_slowdown=1.2}]')
    assert (plan.rules_of("resnet50").max_slowdown, plan.rules_of("bert").max_slowdown) == (1.05, 1.2)


def test_a_table_changes_only_the_keys_it_names() -> None:
    rules = plan_of("max_slowdown=1.05", "period_s=90", 'job=[{name="bert", period_s=30}]').rules_of("bert")
    assert (rules.max_slowdown, rules.period_s, rules.objective) == (1.05, 30.0, "slowdown")


@pytest.mark.parametrize(("job", "eta"), [("bert-large", 0.1), ("bert-base", 0.2), ("bart", 0.3), ("gpt", 0.5)])
def test_an_exact_name_wins_over_patterns_and_the_first_pattern_over_later_ones(job: str, eta: float) -> None:
    tables = ('{name="bert-*", eta=0.2}', '{name="b*", eta=0.3}', '{name="bert-large", eta=0.1}')
    assert plan_of(f"job=[{', '.join(tables)}]").rules_of(job).eta == eta


@pytest.mark.parametrize(
    ("deadline", "expected_s"),
    [
        ("36h", START_S + 36 * 3_600),
        ("0.5h", START_S + 1_800),
        ("2026-07-01T18:00:00+02:00", datetime(2026, 7, 1, 16, tzinfo=UTC).timestamp()),
        ("2026-07-01T16:00Z", datetime(2026, 7, 1, 16, tzinfo=UTC).timestamp()),
    ],
)
def test_a_deadline_is_a_moment_or_hours_after_the_start(deadline: str, expected_s: float) -> None:
    assert deadline_s(deadline, started_at_s=START_S) == expected_s
    assert plan_of("objective=deadline", f'deadline="{deadline}"').deadline == deadline


@pytest.mark.parametrize(
    ("deadline", "start", "expected"),
    [
        ("Mon 8:00 Europe/Berlin", "2026-03-27T12:00+01:00", "2026-03-30T08:00+02:00"),  # summer time begins between
        ("monday 08:00 UTC", "2026-03-30T07:59Z", "2026-03-30T08:00Z"),
        ("Mon 08:00 UTC", "2026-03-30T08:00Z", "2026-04-06T08:00Z"),
        ("8:00 Europe/Berlin", "2026-10-24T09:00+02:00", "2026-10-25T08:00+01:00"),
        ("Sun 23:59 America/New_York", "2026-11-01T12:00-05:00", "2026-11-01T23:59-05:00"),
    ],
)
def test_a_deadline_is_the_next_time_of_a_day_or_a_week(deadline: str, start: str, expected: str) -> None:
    started_at_s, expected_s = (datetime.fromisoformat(moment).timestamp() for moment in (start, expected))
    assert deadline_s(deadline, started_at_s=started_at_s) == expected_s
    assert plan_of("objective=deadline", f'deadline="{deadline}"').deadline == deadline


def test_a_time_without_a_zone_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    start_s = datetime.fromisoformat("2026-03-28T12:00Z").timestamp()
    found_s = []
    for zone in ("Europe/Berlin", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found_s.append(deadline_s("Sun 8:00", started_at_s=start_s))
    monkeypatch.undo()
    time.tzset()
    expected = ("2026-03-29T08:00+02:00", "2026-03-29T08:00+09:00")
    assert found_s == [datetime.fromisoformat(moment).timestamp() for moment in expected]


def test_a_moment_of_toml_is_a_deadline(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text('[plan]\nobjective = "deadline"\ndeadline = 2026-07-01T18:00:00+02:00\n', encoding="utf-8")
    assert load_config(file).plan.deadline == "2026-07-01T18:00:00+02:00"


@pytest.mark.parametrize(
    "deadline",
    [
        *("tomorrow", "36", "-1h", "5", "2026-07-01T18:00:00", "2026-07-01", "1e3h", "true"),
        *("Monkey 8:00", "Mon 24:00", "8:60", "Mon 8", "8:00 Mars/Olympus", "8:00 ../../etc/passwd", "Mon"),
        "Mon 8:00 Europe",
    ],
)
def test_a_deadline_without_a_zone_or_a_unit_is_rejected(deadline: str) -> None:
    (fault,) = plan_faults_of(f"deadline={deadline}")
    assert fault.startswith("plan.deadline = ")
    assert '"36h"' in fault


def test_a_job_with_a_deadline_or_a_budget_is_never_held_out() -> None:
    jobs = 'job=[{name="due", objective="deadline", deadline="8h"}, {name="paid", objective="budget", budget=5.0}]'
    plan = plan_of("holdout_ratio=0.1", jobs)
    assert [plan.job_holdout_ratio(job) for job in ("resnet50", "due", "paid")] == [0.1, 0.0, 0.0]
    assert plan_of("holdout_ratio=0.1", "observe=true").job_holdout_ratio("resnet50") == 0.0
    assert plan_of().job_holdout_ratio("resnet50") == 0.0


def test_more_than_half_of_the_runs_cannot_be_held_out() -> None:
    (fault,) = plan_faults_of("holdout_ratio=0.6")
    assert fault.startswith("plan.holdout_ratio = 0.6: ")


def test_all_faults_of_all_job_tables_are_reported_at_once() -> None:
    faults = plan_faults_of(
        'job=[{name="a b", eta=7}, {eta=0.5}, 3, {name="x", per=1}, {name="y", deadline=2026-07-01T18:00:00}]',
        "max_slowdown=0",
    )
    starts = [fault.partition(":")[0] for fault in faults]
    assert starts == [
        "plan.job[0].eta = 7",
        "plan.job[0].name = 'a b'",
        "plan.job[1].name = None",
        "plan.job[2].name = None",
        "plan.job[3].per",
        "plan.job[4].deadline = '2026-07-01T18",
        "plan.max_slowdown = 0",
    ]


def test_job_tables_must_be_a_list() -> None:
    assert plan_faults_of("job=resnet50") == ["plan.job = 'resnet50': must be a list of tables, each [[plan.job]]"]


@pytest.mark.parametrize("objective", ["deadline", "budget"])
def test_an_objective_without_its_key_says_which_is_missing(objective: str) -> None:
    (fault,) = plan_faults_of(f"objective={objective}")
    assert fault.startswith(f"plan.{objective} = ")
    (fault,) = plan_faults_of(f'job=[{{name="bert"}}, {{name="gpt", objective="{objective}"}}]')
    assert fault.startswith(f"plan.job[1].{objective} = ")


def test_what_an_objective_needs_may_stand_in_the_plan_or_in_the_table() -> None:
    assert plan_of("budget=5", 'job=[{name="bert", objective="budget"}]').rules_of("bert").budget == 5


@pytest.mark.parametrize(("objective", "there", "none"), [("budget", "100", "0.0"), ("deadline", '"8h"', '""')])
def test_a_table_that_unsets_what_the_objective_needs_is_rejected(objective: str, there: str, none: str) -> None:
    tables = f'job=[{{name="a", {objective}={none}}}, {{name="b", eta=0.1}}, {{name="c", {objective}={none}}}]'
    faults = plan_faults_of(f"objective={objective}", f"{objective}={there}", tables)
    assert [fault.partition(" = ")[0] for fault in faults] == [f"plan.job[{n}].{objective}" for n in (0, 2)]
