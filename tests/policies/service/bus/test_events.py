"""Events end a trial as reached, stopped, failed or lost, whoever reports and in whichever order."""

import pytest
from msgspec.structs import replace

from policies.service.bus.events import (
    BatchSizesTimed,
    DefaultAnswered,
    EnergyReported,
    Heartbeat,
    MetricReported,
    RunEnded,
    RunEvent,
    TrialFailed,
)
from policies.service.errors import TrialConflictError, UnknownTrialError
from policies.service.records import IterationTime, Result, Timing, Trial
from policies.service.trials.lifecycle import n_epochs
from tests.fakes import USER
from tests.policies.service.memory_store import NOW_S, MemoryTrials, final_energy, run_energy
from tests.policies.service.repositories import run_key

RUN = {"user": USER, "job": "resnet50", "run": "r1"}


def measured(epoch: int, *, reached: bool) -> MetricReported:
    return MetricReported(**RUN, at_s=NOW_S + 10, epoch=epoch, value=0.8, reached=reached)


def used(**changes: object) -> EnergyReported:
    return EnergyReported(**RUN, at_s=NOW_S + 20, energy=final_energy(**changes))


def ended(*, lost: bool = False, reached: bool = False) -> RunEnded:
    return RunEnded(user=USER, job="resnet50", run="r1", at_s=NOW_S + 30, lost=lost, reached=reached)


def timed() -> BatchSizesTimed:
    times = (IterationTime(batch_size=32, iteration_time_s=0.01),)
    return BatchSizesTimed(**RUN, at_s=NOW_S + 5, timing=Timing(times=times, too_large=64, batch_size=32))


async def applied(*events: RunEvent) -> Trial:
    """Return the trial of batch size 64 after some events."""
    memory = MemoryTrials()
    await memory.open()
    for event in events:
        await event.apply(memory.trials)
    return await memory.trial()


async def test_a_run_that_has_validated_and_used_energy_is_an_observation() -> None:
    trial = await applied(measured(1, reached=False), measured(2, reached=True), used(cost=0.5, currency="EUR"))
    assert (trial.state, trial.last_epoch) == ("reached", 2)
    result = trial.result
    assert (result.reached_epochs, result.epochs, result.energy_j, result.duration_s) == (3, 4, 40_000.0, 100.0)
    assert (result.max_power_w, result.gpu_model, result.n_gpus) == (600.0, "NVIDIA A40", 2)
    assert (result.money, result.currency, result.carbon_g) == (0.5, "EUR", None)


async def test_the_zeros_of_a_run_that_never_held_a_gpu_are_no_measurement() -> None:
    trial = await applied(used(n_gpus=0, gpu_model="", energy_j=0.0, duration_s=0.0, max_power_w=None))
    result = trial.result
    assert (result.energy_j, result.duration_s, result.gpu_model, result.n_gpus) == (None, None, None, None)
    assert result.epochs == 4


async def test_without_a_metric_a_run_that_says_it_has_reached_needed_all_its_epochs() -> None:
    trial = await applied(used(reached=True))
    assert (trial.state, n_epochs(trial)) == ("reached", 4)


async def test_with_a_metric_a_run_that_says_it_has_reached_needed_those_until_then() -> None:
    trial = await applied(measured(1, reached=True), used(reached=True))
    assert (trial.state, n_epochs(trial)) == ("reached", 2)


async def test_a_run_that_says_it_has_reached_without_an_epoch_tells_nothing() -> None:
    assert (await applied(used(reached=True, epochs=0))).state == "lost"


async def test_a_run_that_ended_before_its_target_was_stopped() -> None:
    assert (await applied(measured(3, reached=False), used(reached=False))).state == "stopped"


@pytest.mark.parametrize("state", ["lost", "silent"])
async def test_a_run_that_vanished_is_released_and_its_energy_kept(state: str) -> None:
    trial = await applied(measured(1, reached=False), used(state=state))
    assert trial.state == "lost"
    assert trial.result.energy_j == 40_000.0


async def test_a_run_that_vanished_after_it_had_reached_has_reached() -> None:
    assert (await applied(measured(3, reached=True), used(state="lost"))).state == "reached"


async def test_without_a_controller_the_end_of_the_process_decides() -> None:
    assert (await applied(measured(3, reached=True), ended())).state == "reached"
    assert (await applied(measured(3, reached=False), ended())).state == "stopped"
    assert (await applied(measured(3, reached=False), ended(lost=True))).state == "lost"
    assert (await applied(ended())).state == "lost"


async def test_a_process_that_says_it_has_reached_did_so_at_its_last_validation() -> None:
    trial = await applied(measured(4, reached=False), ended(reached=True))
    assert (trial.state, trial.result.reached_epochs) == ("reached", 5)


async def test_a_batch_size_that_cannot_run_has_failed() -> None:
    trial = await applied(
        TrialFailed(user=USER, job="resnet50", run="r1", at_s=NOW_S + 1, failure="out_of_memory"),
        used(state="lost"),
        ended(lost=True),
    )
    assert (trial.state, trial.result.failure) == ("failed", "out_of_memory")


async def test_a_run_that_has_timed_goes_on_with_what_fits() -> None:
    trial = await applied(timed(), measured(2, reached=True), used())
    assert (trial.batch_size, trial.reason, trial.state, trial.timing) == (32, "too_large", "reached", timed().timing)
    assert trial.detail == "batch size 64 does not fit the memory; the run continues with 32"


@pytest.mark.parametrize(
    "news",
    [used(batch_size=32, n_gpus=1), replace(ended(), batch_size=32, n_ranks=1)],
    ids=["controller", "process"],
)
async def test_a_run_counts_for_the_batch_size_that_it_trained_with(news: RunEvent) -> None:
    trial = await applied(measured(2, reached=False), news, news)
    assert (trial.batch_size, trial.state, trial.reason, trial.cost_bound) == (32, "stopped", "other_batch_size", None)


async def test_what_has_failed_is_the_batch_size_that_was_tried() -> None:
    trial = await applied(
        TrialFailed(user=USER, job="resnet50", run="r1", at_s=NOW_S + 1, failure="out_of_memory", batch_size=128)
    )
    assert (trial.state, trial.batch_size) == ("failed", 128)


async def test_the_samples_of_a_rank_are_no_other_batch_size() -> None:
    for own, n_gpus in ((64, 1), (32, 2), (64, 4), (48, 2)):
        trial = await applied(used(batch_size=own, n_gpus=n_gpus, reached=True))
        assert (trial.state, trial.batch_size) == ("reached", 64)


async def test_a_run_that_trained_with_none_of_the_candidates_is_released_for_good() -> None:
    trial = await applied(
        timed(), measured(1, reached=True), used(batch_size=48, n_gpus=1), ended(), measured(2, reached=True)
    )
    assert (trial.state, trial.reason, trial.result, trial.timing) == ("lost", "foreign_batch_size", Result(), None)
    assert "trains with 48, none of its job's" in trial.detail


async def test_before_its_first_iteration_a_run_may_still_speak_of_another_batch_size() -> None:
    trial = await applied(EnergyReported(**RUN, at_s=NOW_S, energy=run_energy(batch_size=32, iterations=0)))
    assert trial.batch_size == 64


async def test_a_controller_that_came_late_tells_of_its_epochs_and_of_those_before() -> None:
    trial = await applied(used(reached=True, epochs=4, epochs_missed=6))
    result = trial.result
    assert (trial.state, result.epochs, result.reached_epochs) == ("reached", 4, 10)


async def test_every_piece_may_come_twice() -> None:
    once = await applied(timed(), measured(2, reached=True), used())
    twice = await applied(
        *(timed(), timed(), measured(2, reached=True), measured(2, reached=True), used(), used(), ended(), used())
    )
    assert twice == once


async def test_progress_over_the_bound_says_why_to_stop_and_the_final_report_does_not() -> None:
    memory = MemoryTrials()
    trial = await memory.open_bound()
    stop = await EnergyReported(**RUN, at_s=NOW_S, energy=run_energy()).apply(memory.trials)
    assert stop is not None
    assert stop.startswith(f"batch size {trial.batch_size} costs 5e+04 J so far, above the bound of ")
    assert await memory.state() == "running"
    assert await used().apply(memory.trials) is None
    assert await memory.state() == "stopped"


async def test_what_a_run_has_used_is_kept_though_another_end_was_reported_before() -> None:
    memory = MemoryTrials()
    await memory.open()
    await memory.trials.report(run_key("r1", "resnet50"), Result(outcome="stopped", epochs=2), now_s=NOW_S)
    with pytest.raises(TrialConflictError):
        await used(reached=True, batch_size=32, n_gpus=1).apply(memory.trials)
    trial = await memory.trial()
    assert (trial.state, trial.batch_size, trial.result.energy_j) == ("stopped", 32, 40_000.0)


async def test_an_end_is_one_transaction() -> None:
    memory = MemoryTrials()
    await memory.open()
    for event in (used(batch_size=32, n_gpus=1, reached=True), ended(reached=True)):
        n_before = memory.database.n_begun
        await event.apply(memory.trials)
        assert memory.database.n_begun - n_before == 1
    assert await memory.state() == "reached"


async def test_a_run_that_was_answered_without_the_database_gets_a_trial() -> None:
    memory = MemoryTrials()
    answered = DefaultAnswered(
        **RUN,
        at_s=NOW_S,
        batch_sizes=(32, 64),
        default_batch_size=32,
        reason="store_unavailable",
        detail="it was away",
    )
    await answered.apply(memory.trials)
    trial = await memory.trial()
    assert (trial.batch_size, trial.reason, trial.detail) == (32, "store_unavailable", "it was away")


@pytest.mark.parametrize("event", [Heartbeat(**RUN, at_s=NOW_S), measured(1, reached=True), used(), timed(), ended()])
async def test_a_run_that_never_asked_is_unknown(event: RunEvent) -> None:
    with pytest.raises(UnknownTrialError):
        await event.apply(MemoryTrials().trials)
