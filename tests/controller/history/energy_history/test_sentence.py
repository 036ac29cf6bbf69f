"""How amounts were counted, in sentences: by which sources, of what, and what runs held out say."""

from typing import Any

import pytest

from controller.history.energy_history.report import Part
from controller.history.energy_history.sentence import MAX_NAMED, how_counted
from tests.controller.history.energy_history.records import run_record

AVERAGE = {"signal_kind": "average", "signal_source": "Energy-Charts", "signal_zone": "DE"}
MARGINAL = {"signal_kind": "marginal", "signal_source": "WattTime", "signal_zone": "CAISO_NORTH"}
PRICE = {"signal_kind": "price", "signal_source": "aWATTar", "carbon_g": None, "cost": 1.0}
BY_AVERAGE = "Carbon is location-based, by the average intensity of the grid, from"
BY_MARGINAL = "Carbon is location-based, by the marginal intensity of the grid, from"
GPUS_ALONE = "Energy, carbon and cost are of the GPUs alone, without host power or PUE."


def parts(*records: dict[str, Any], job: str = "bert") -> list[Part]:
    return [Part("ada", job, f"r{place}", run_record(**changes), {}) for place, changes in enumerate(records)]


def test_runs_by_one_source_need_no_number() -> None:
    assert how_counted(parts(AVERAGE, AVERAGE)) == [
        f"{BY_AVERAGE} Energy-Charts in DE.",
        GPUS_ALONE,
    ]


def test_runs_by_several_sources_are_told_apart() -> None:
    found = how_counted(parts(AVERAGE, MARGINAL, AVERAGE, PRICE, {}))
    assert found == [
        f"{BY_AVERAGE} Energy-Charts in DE (2 runs).",
        f"{BY_MARGINAL} WattTime in CAISO_NORTH (1 run).",
        "Cost is by the price of electricity, from aWATTar (1 run).",
        "For 1 run, the source of carbon or cost was not recorded.",
        GPUS_ALONE,
    ]


def test_of_many_sources_those_of_most_runs_are_named() -> None:
    many = [AVERAGE | {"signal_zone": f"Z{number}"} for number in range(MAX_NAMED + 3)]
    (said, _) = how_counted(parts(*many, many[-1]))
    assert "Energy-Charts in Z6 (2 runs), " in said
    assert said.endswith(", 3 more.")


def test_for_how_long_no_value_was_measured_is_said_of_all_runs_together() -> None:
    records = [AVERAGE | {"duration_s": 36_000.0, "signal_unmeasured_s": lacked_s} for lacked_s in (0.0, 5_400.0)]
    said = "For 1 h 30 min of the 20 h 00 min that these runs took, the source gave an estimate or no value."
    assert how_counted(parts(*records, {"duration_s": 9e9}))[1] == said
    assert len(how_counted(parts(records[0]))) == 2


@pytest.mark.parametrize(
    ("records", "weighed"),
    [
        ([{"pue": 1.4}], "a PUE of 1.4"),
        ([{"pue": 1.4, "host_power_w": 300.0}], "300 W for the rest of each machine and a PUE of 1.4"),
        ([{"host_power_w": 300.0}, {}], "300 W for the rest of each machine (1 run)"),
    ],
)
def test_what_plans_weigh_beside_the_gpus_is_said_not_to_be_counted(
    records: list[dict[str, Any]], weighed: str
) -> None:
    assert (
        how_counted(parts(*records))[-1]
        == f"{GPUS_ALONE} Plans also allow for {weighed}; no number here includes that."
    )


def test_runs_held_out_are_told_of_each_job_by_its_newest_record() -> None:
    known = {"ab_saved_energy_ratio": 0.141, "ab_saved_energy_lower_ratio": 0.12, "ab_saved_energy_upper_ratio": 0.16}
    early = {"ab_runs": 3, "ab_held_out_runs": 1}
    later = {"ab_runs": 20, "ab_held_out_runs": 4, **known}
    found = how_counted([*parts(early, later), *parts(early, job="gpt")])
    bert, gpt = found[-2:]
    assert bert.startswith("A/B check of ada/bert, 4 of 20 runs held out at the prior limit: the others use")
    assert bert.endswith("14.1 % less energy an iteration (90 %: 12.0 to 16.0 %).")
    assert gpt == "A/B check of ada/gpt, 1 of 3 runs held out at the prior limit: too early to tell."


def test_of_no_run_nothing_is_said() -> None:
    assert how_counted([]) == []
