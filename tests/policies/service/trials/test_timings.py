"""What runs have timed: the unit of their times, which batch sizes are still to be timed, and which do not fit."""

import math

import pytest
from msgspec.structs import replace

from policies.batch_size import Observation, Study
from policies.batch_size.epoch_costs import infer_epoch_costs
from policies.service.errors import RequestError
from policies.service.records import IterationTime, Job, Result, Timing, Trial
from policies.service.trials.lifecycle import _merge_timings, with_timing
from policies.service.trials.observations import (
    batch_sizes_to_time,
    combine_times,
    epoch_times,
    sample_times,
    sizes_too_large,
    study_of,
)
from policies.service.trials.validation import timing_faults
from tests.fakes import USER

JOB = Job(user=USER, name="job", batch_sizes=(8, 16, 32, 64), default_batch_size=32, created_at_s=0.0)
MEASURED = Result(epochs=4, reached_epochs=4, energy_j=1000.0, duration_s=10.0, max_power_w=300.0, gpu_model="A40")
NEW = Result()


def timing(times_s: dict[int, float], **changes: int) -> Timing:
    times = tuple(IterationTime(batch_size=size, iteration_time_s=time_s) for size, time_s in times_s.items())
    return Timing(times=times, **changes)


def a_trial(number: int = 0, result: Result = NEW, **changes: object) -> Trial:
    """Return a trial that has ended where it has measurements, and goes on where it has none."""
    has_ended = result.epochs is not None
    trial = Trial(
        user=USER,
        job="job",
        run=f"run-{number}",
        number=number,
        recurrence=number,
        batch_size=32,
        state="reached" if has_ended else "running",
        reason="default_first",
        detail="",
        requested_at_s=0.0,
        heard_at_s=0.0,
        lease_s=100.0,
        ended_at_s=float(number) if has_ended else None,
        result=result,
    )
    return replace(trial, **changes)


def test_times_are_of_samples_and_the_newest_of_a_size_counts() -> None:
    trials = [a_trial(0, timing=timing({8: 0.8, 16: 0.8})), a_trial(1), a_trial(2, timing=timing({8: 0.4}))]
    assert sample_times(trials) == {8: pytest.approx(0.05), 16: pytest.approx(0.05)}


def test_times_of_another_gpu_model_than_that_of_the_newest_end_do_not_count() -> None:
    old = a_trial(0, replace(MEASURED, gpu_model="V100"), timing=timing({8: 0.8, 16: 0.8}, too_large=64))
    unknown = a_trial(1, timing=timing({16: 0.4}))
    assert set(sample_times([old, unknown])) == {8, 16}
    assert sizes_too_large([old, unknown]) == [64]
    new = a_trial(2, MEASURED)
    assert sample_times([old, unknown, new]) == {16: pytest.approx(0.025)}
    assert sizes_too_large([old, unknown, new]) == []


def test_times_of_samples_and_of_epochs_are_joined_where_one_batch_size_has_both() -> None:
    assert combine_times({}, {32: 10.0}) == {32: 10.0}
    assert combine_times({8: 0.2, 16: 0.1}, {32: 10.0}) == {8: 0.2, 16: 0.1}
    assert combine_times({8: 0.2, 16: 0.1}, {16: 10.0, 32: 7.0}) == {
        8: pytest.approx(20.0),
        16: pytest.approx(10.0),
        32: pytest.approx(7.0),
    }
    both = combine_times({8: 0.2, 16: 0.1}, {8: 10.0, 16: 20.0})
    assert both[8] / both[16] == pytest.approx(2.0)
    assert math.sqrt(both[8] * both[16]) == pytest.approx(math.sqrt(200.0))


def test_what_was_timed_is_in_the_study_before_anything_has_ended() -> None:
    study = study_of(JOB, [a_trial(timing=timing({8: 0.08, 32: 0.16}))], 0.5, now_s=1.0)
    assert study.epoch_times == {8: pytest.approx(0.01), 32: pytest.approx(0.005)}
    assert study.epoch_costs == {}
    done = a_trial(1, MEASURED)
    assert epoch_times([a_trial(timing=timing({8: 0.08, 32: 0.16})), done], {32: 1.0}) == {
        8: pytest.approx(5.0),
        32: pytest.approx(2.5),
    }


def test_the_costs_of_batch_sizes_that_never_ran_follow_from_their_times() -> None:
    times_s = {8: 0.08, 16: 0.10, 32: 0.16, 64: 0.24}
    study = study_of(JOB, [a_trial(0, MEASURED, timing=timing(times_s))], 1.0, now_s=1.0)
    costs = infer_epoch_costs(study)
    assert costs.known.tolist() == [False, False, True, False]
    ratios = [math.exp(log - costs.log.mean[2]) for log in costs.log.mean]
    assert ratios == pytest.approx([times_s[size] / size / 0.005 for size in JOB.batch_sizes], rel=0.05)


def test_a_run_whose_own_batch_size_fits_goes_on_with_it() -> None:
    trial = a_trial()
    with pytest.raises(RequestError, match="batch_size = 8: must be left out"):
        with_timing(trial, timing({8: 0.1}, too_large=64, batch_size=8), 1.0)
    smaller = with_timing(trial, timing({8: 0.1}, too_large=32, batch_size=8), 1.0)
    assert smaller.batch_size == 8
    assert with_timing(smaller, timing({8: 0.1}, too_large=32, batch_size=8), 2.0).batch_size == 8


def a_study(**changes: object) -> Study:
    fields: dict[str, object] = {"candidates": JOB.batch_sizes, "default": 32, **changes}
    return Study(**fields)  # type: ignore[arg-type]  # by name


def test_the_first_run_is_to_time_everything() -> None:
    assert batch_sizes_to_time(a_study(), []) == (8, 16, 32, 64)


def test_what_was_timed_or_has_a_cost_is_not_timed_again() -> None:
    trials = [a_trial(timing=timing({8: 0.1, 32: 0.1}))]
    assert batch_sizes_to_time(a_study(), trials) == (16, 64)
    assert batch_sizes_to_time(a_study(epoch_costs={32: 1.0, 64: 1.0}), trials) == (16,)
    assert batch_sizes_to_time(a_study(epoch_costs=dict.fromkeys(JOB.batch_sizes, 1.0)), []) == ()


def test_one_that_has_run_is_timed_with_the_others_so_that_they_can_be_compared() -> None:
    assert batch_sizes_to_time(a_study(epoch_costs={16: 1.0, 64: 1.0}), []) == (8, 16, 32)
    assert batch_sizes_to_time(
        a_study(epoch_costs={16: 1.0}), [a_trial(timing=timing({8: 0.1, 32: 0.1, 64: 0.1}))]
    ) == (16,)


def test_what_cannot_run_is_not_timed() -> None:
    trials = [a_trial(timing=timing({8: 0.1, 16: 0.1}, too_large=32))]
    study = study_of(JOB, trials, 0.5, now_s=1.0)
    assert study.pruned == {32, 64}
    assert [(seen.batch_size, seen.outcome) for seen in study.observations] == [(32, "failed")]
    assert batch_sizes_to_time(study, trials) == ()


def test_a_batch_size_that_has_run_fits_whatever_a_probe_says() -> None:
    trials = [a_trial(0, MEASURED), a_trial(1, timing=timing({8: 0.1}, too_large=32))]
    assert study_of(JOB, trials, 0.5, now_s=1.0).pruned == set()


def test_a_run_that_times_once_more_corrects_itself() -> None:
    first = timing({8: 0.1, 16: 0.2}, too_large=32, batch_size=16)
    assert _merge_timings(None, first) is first
    assert _merge_timings(first, first) == first
    assert _merge_timings(first, timing({8: 0.3})) == timing({8: 0.3, 16: 0.2}, too_large=32)
    assert _merge_timings(first, timing({32: 0.3})) == timing({8: 0.1, 16: 0.2, 32: 0.3})
    assert _merge_timings(first, timing({8: 0.3}, too_large=16, batch_size=8)) == timing(
        {8: 0.3}, too_large=16, batch_size=8
    )


def test_a_run_that_times_lives_and_becomes_one_of_the_batch_size_that_fits() -> None:
    trial = a_trial(state="open", cost_bound=7.0)
    fitting = with_timing(trial, timing({8: 0.1}, too_large=16, batch_size=8), 50.0)
    assert (fitting.state, fitting.heard_at_s, fitting.batch_size, fitting.cost_bound) == ("running", 50.0, 8, 7.0)
    same = with_timing(trial, timing({8: 0.1}), 50.0)
    assert (same.batch_size, same.reason) == (32, "default_first")
    late = with_timing(a_trial(0, MEASURED), timing({8: 0.1}), 50.0)
    assert (late.state, late.ended_at_s, late.timing) == ("reached", 0.0, timing({8: 0.1}))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (timing({8: 0.1, 48: 0.1}), "batch size 48: must be one of"),
        (timing({8: 0.1}, too_large=48), "batch size 48: must be one of"),
        (replace(timing({8: 0.1}), times=2 * timing({8: 0.1}).times), "of each once"),
        (timing({8: 0.0}), "must be finite, and above 0"),
        (timing({8: math.nan}), "must be finite, and above 0"),
        (timing({8: math.inf}), "must be finite, and above 0"),
        (timing({32: 0.1}, too_large=32), "must be above what fits the memory, 32"),
        (timing({8: 0.1}, too_large=16, batch_size=64), "must be above what fits the memory, 64"),
        (timing({8: 0.1}, batch_size=8), "batch_size: only where"),
    ],
)
def test_what_cannot_have_been_timed_is_a_fault(wrong: Timing, fault: str) -> None:
    (found,) = timing_faults(wrong, JOB)
    assert fault in found
    assert timing_faults(timing({8: 0.1, 16: 0.1}, too_large=32, batch_size=16), JOB) == []


def test_where_there_is_nothing_to_choose_from_nothing_is_timed() -> None:
    assert batch_sizes_to_time(Study(candidates=(32,), default=32), []) == ()
    failed = Observation(batch_size=16, outcome="failed")
    assert batch_sizes_to_time(a_study(observations=(failed,)), []) == ()
