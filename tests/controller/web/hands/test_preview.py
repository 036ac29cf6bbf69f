"""What a pin would do, by what the bus says: as the books count it, and no number without its evidence."""

import msgspec
import pytest

from controller.ports.orders import sentence_of_pin
from controller.web.hands.preview import expected_ends, known_curve, min_power_limit_w, preview_pin
from controller.web.live.site_state import RunState
from publishers.messages.topics import RunKey
from tests.controller.history.energy_history.records import TOPICS
from tests.controller.web.pages.site import MODEL, NOW_S, Site

KEY = RunKey("alice", "resnet50", "r1")
HOUR_S = 3_600.0


def run(*, saved_ratio: float | None = 0.143, ci: float | None = 0.01) -> RunState:
    """Return a run that has been slower by 3 % for two hours, on two GPUs with limits of 100 to 300 W."""
    site = Site()
    site.say_run(KEY, saved_ratio=saved_ratio)
    state = site.state.runs[KEY]
    assert state.profile is not None
    points = [msgspec.structs.replace(point, iterations_per_s_ci=ci) for point in state.profile.points]
    state.profile = msgspec.structs.replace(state.profile, points=points)
    return state


def test_a_pin_is_what_the_books_will_count() -> None:
    seen = preview_pin(run(), power_limit_w=200.0, duration_s=2 * HOUR_S)
    assert (seen.power_limit_w, seen.n_gpus, seen.power_w) == (200.0, 2, 360.0)
    assert seen.speed_ratio == pytest.approx(7 / 9)
    work_s = 2 * HOUR_S / 1.03 + 2 * HOUR_S * 7 / 9
    assert seen.slowdown_ratio == pytest.approx(4 * HOUR_S / work_s)
    assert seen.slowdown_ci90_ratio is not None
    assert 0 < seen.slowdown_ci90_ratio < 0.01
    assert sentence_of_pin(seen) == (
        "at 200 W this run goes at 77.8 % of full speed and its 2 GPUs draw 360 W; when the pin ends, it will have been"
        " slower by between 14.1 and 14.6 %, over its budget of 5.0 % by 9.4 points"
    )


def test_between_two_points_the_curve_is_a_line() -> None:
    seen = preview_pin(run(), power_limit_w=225.0, duration_s=HOUR_S)
    assert seen.speed_ratio == pytest.approx(7.5 / 9)
    assert seen.power_w == pytest.approx(405.0)


@pytest.mark.parametrize(("asked_w", "limit_w"), [(400.0, 300.0), (50.0, 90.0), (150.0, 150.0)])
def test_a_pin_is_never_above_the_prior_limit_nor_below_what_the_gpus_take(asked_w: float, limit_w: float) -> None:
    seen = preview_pin(run(), power_limit_w=asked_w, duration_s=HOUR_S, min_power_limit_w=90.0)
    assert seen.power_limit_w == limit_w
    assert (seen.speed_ratio is None) == (limit_w == 90.0), "below what was measured nothing is known"


def test_the_lowest_limit_is_not_that_of_another_users_job_of_the_same_name() -> None:
    site = Site()
    site.say_run(KEY)
    assert min_power_limit_w(site.state, KEY, NOW_S) == 0.0
    for node, model, least_w in (("atlas", MODEL, 90.0), ("hera", "NVIDIA H100", 200.0)):
        site.say_node(node, 1)
        status = site.state.nodes[node].status
        gpus = [msgspec.structs.replace(gpu, model=model, min_power_limit_w=least_w) for gpu in status.gpus]
        site.say(TOPICS.node_status(node), msgspec.structs.replace(status, gpus=gpus))
        site.say_gpu(node, 0, job=KEY.job)
    assert min_power_limit_w(site.state, KEY, NOW_S) == 90.0


@pytest.mark.parametrize(("saved_ratio", "ci"), [(None, 0.01), (0.143, None)])
def test_without_evidence_nothing_is_said_of_the_budget(saved_ratio: float | None, ci: float | None) -> None:
    seen = preview_pin(run(saved_ratio=saved_ratio, ci=ci), power_limit_w=200.0, duration_s=HOUR_S)
    assert seen.slowdown_ratio is None
    assert sentence_of_pin(seen).endswith("draw 360 W; what that does to its time budget is not known yet")


def test_a_record_of_the_whole_run_says_nothing_of_a_budget_that_an_order_has_begun() -> None:
    state = run()
    assert state.schedule is not None
    state.schedule = msgspec.structs.replace(state.schedule, goal_by="ada")
    seen = preview_pin(state, power_limit_w=200.0, duration_s=HOUR_S)
    assert sentence_of_pin(seen).endswith("what that does to its time budget is not known yet")


def test_full_speed_is_known_where_the_curve_ends_at_the_prior_limit_alone() -> None:
    state = run()
    assert state.energy is not None
    state.energy = msgspec.structs.replace(state.energy, max_power_w=800.0)
    assert known_curve(state) == []
    assert preview_pin(state, power_limit_w=200.0, duration_s=HOUR_S).speed_ratio is None
    assert preview_pin(RunState(), power_limit_w=200.0, duration_s=HOUR_S).n_gpus == 0


def test_at_full_speed_a_pin_only_adds_time() -> None:
    seen = preview_pin(run(), power_limit_w=300.0, duration_s=2 * HOUR_S)
    assert seen.speed_ratio == 1.0
    assert seen.slowdown_ratio is not None
    assert 1.0 < seen.slowdown_ratio < 1.03


def test_the_end_at_full_speed_is_that_of_the_work_that_the_plan_has_left() -> None:
    state = run()
    ends = expected_ends(state, NOW_S)
    assert ends is not None
    assert ends[0] == NOW_S + 6 * HOUR_S
    assert ends[1] == pytest.approx(NOW_S + 6 * HOUR_S * 0.985)
    later = expected_ends(state, NOW_S + 2 * HOUR_S)
    assert later is not None
    assert later[1] == pytest.approx(NOW_S + 2 * HOUR_S + 4 * HOUR_S * 0.985)
    assert expected_ends(state, NOW_S + 7 * HOUR_S) is None, "the plan is over"
    state.schedule = None
    assert expected_ends(state, NOW_S) is None


def test_a_plan_goes_on_as_it_was_planned_beyond_its_last_hour() -> None:
    state = run()
    assert state.schedule is not None
    state.schedule = msgspec.structs.replace(state.schedule, expected_end_s=NOW_S + 48 * HOUR_S)
    ends = expected_ends(state, NOW_S)
    assert ends is not None
    assert ends[1] == pytest.approx(NOW_S + 48 * HOUR_S * 0.985)
