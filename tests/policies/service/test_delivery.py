"""What is told of a run makes its end: reached, stopped, failed or lost, whoever says it and in whichever order."""

import pytest

from policies.service.bus.delivery import deliver
from policies.service.bus.news import Alive, Answered, Ended, Failed, Measured, Story, Timed, Used
from policies.service.errors import UnknownTrialError
from policies.service.records import IterationTime, Timing
from policies.service.trials import n_epochs
from tests.policies.service.memory_desk import NOW_S, MemoryDesk, final_energy, run_energy

RUN = {"job": "resnet50", "run": "r1"}


def measured(epoch: int, *, reached: bool) -> Measured:
    return Measured(**RUN, at_s=NOW_S + 10, epoch=epoch, value=0.8, reached=reached)


def used(**changes: object) -> Used:
    return Used(**RUN, at_s=NOW_S + 20, energy=final_energy(**changes))


def ended(*, lost: bool = False, reached: bool = False) -> Ended:
    return Ended(**RUN, at_s=NOW_S + 30, lost=lost, reached=reached)


def timed() -> Timed:
    times = (IterationTime(batch_size=32, iteration_time_s=0.01),)
    return Timed(**RUN, at_s=NOW_S + 5, timing=Timing(times=times, too_large=64, batch_size=32))


async def delivered(*news: Story) -> MemoryDesk:
    desk = MemoryDesk()
    desk.open()
    for item in news:
        await deliver(desk, item)
    return desk


async def test_a_run_that_has_validated_and_used_energy_is_an_observation() -> None:
    desk = await delivered(measured(1, reached=False), measured(2, reached=True), used(cost=0.5, currency="EUR"))
    trial = desk.trials["resnet50", "r1"]
    assert (trial.state, trial.last_epoch) == ("reached", 2)
    result = trial.result
    assert (result.reached_epochs, result.epochs, result.energy_j, result.duration_s) == (3, 4, 40_000.0, 100.0)
    assert (result.max_power_w, result.gpu_model, result.n_gpus) == (600.0, "NVIDIA A40", 2)
    assert (result.money, result.currency, result.carbon_g) == (0.5, "EUR", None)


async def test_without_a_metric_a_run_that_says_it_has_reached_needed_all_its_epochs() -> None:
    desk = await delivered(used(reached=True))
    assert (desk.state(), n_epochs(desk.trials["resnet50", "r1"])) == ("reached", 4)


async def test_with_a_metric_a_run_that_says_it_has_reached_needed_those_until_then() -> None:
    desk = await delivered(measured(1, reached=True), used(reached=True))
    assert (desk.state(), n_epochs(desk.trials["resnet50", "r1"])) == ("reached", 2)


async def test_a_run_that_says_it_has_reached_without_an_epoch_tells_nothing() -> None:
    assert (await delivered(used(reached=True, epochs=0))).state() == "lost"


async def test_a_run_that_ended_before_its_target_was_stopped() -> None:
    assert (await delivered(measured(3, reached=False), used(reached=False))).state() == "stopped"


@pytest.mark.parametrize("state", ["lost", "silent"])
async def test_a_run_that_vanished_is_released_and_its_energy_kept(state: str) -> None:
    desk = await delivered(measured(1, reached=False), used(state=state))
    assert desk.state() == "lost"
    assert desk.trials["resnet50", "r1"].result.energy_j == 40_000.0


async def test_a_run_that_vanished_after_it_had_reached_has_reached() -> None:
    assert (await delivered(measured(3, reached=True), used(state="lost"))).state() == "reached"


async def test_without_a_controller_the_end_of_the_process_decides() -> None:
    assert (await delivered(measured(3, reached=True), ended())).state() == "reached"
    assert (await delivered(measured(3, reached=False), ended())).state() == "stopped"
    assert (await delivered(measured(3, reached=False), ended(lost=True))).state() == "lost"
    assert (await delivered(ended())).state() == "lost"


async def test_a_process_that_says_it_has_reached_did_so_at_its_last_validation() -> None:
    desk = await delivered(measured(4, reached=False), ended(reached=True))
    assert (desk.state(), desk.trials["resnet50", "r1"].result.reached_epochs) == ("reached", 5)


async def test_a_batch_size_that_cannot_run_has_failed() -> None:
    desk = await delivered(Failed(**RUN, at_s=NOW_S + 1, failure="out_of_memory"), used(state="lost"), ended(lost=True))
    assert (desk.state(), desk.trials["resnet50", "r1"].result.failure) == ("failed", "out_of_memory")


async def test_a_run_that_has_timed_goes_on_with_what_fits() -> None:
    desk = await delivered(timed(), measured(2, reached=True), used())
    trial = desk.trials["resnet50", "r1"]
    assert (trial.batch_size, trial.reason, trial.state, trial.timing) == (32, "too_large", "reached", timed().timing)
    assert trial.detail == "64 does not fit the memory: 32 is what the run goes on with"


async def test_every_piece_may_come_twice() -> None:
    once = await delivered(timed(), measured(2, reached=True), used())
    twice = await delivered(
        *(timed(), timed(), measured(2, reached=True), measured(2, reached=True), used(), used(), ended(), used())
    )
    assert twice.trials == once.trials


async def test_progress_says_whether_to_stop_and_the_last_word_does_not() -> None:
    desk = MemoryDesk()
    desk.open()
    desk.stop = "over its bound"
    assert await deliver(desk, Used(**RUN, at_s=NOW_S, energy=run_energy())) == "over its bound"
    assert desk.state() == "running"
    assert await deliver(desk, used()) is None


async def test_a_run_that_was_answered_without_the_database_is_taken_in() -> None:
    desk = MemoryDesk()
    answered = Answered(
        **RUN,
        at_s=NOW_S,
        batch_sizes=(32, 64),
        default_batch_size=32,
        reason="store_unavailable",
        detail="it was away",
    )
    await deliver(desk, answered)
    trial = desk.trials["resnet50", "r1"]
    assert (trial.batch_size, trial.reason, trial.detail) == (32, "store_unavailable", "it was away")


@pytest.mark.parametrize("news", [Alive(**RUN, at_s=NOW_S), measured(1, reached=True), used(), timed()])
async def test_a_run_that_never_asked_is_unknown(news: Story) -> None:
    with pytest.raises(UnknownTrialError):
        await deliver(MemoryDesk(), news)
