"""A GPU is a run's only where the driver lists its processes: forged, shared and unseen claims on a whole node."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.runs.claim_arbiter import CHECK_S, ENDING_S
from publishers.messages.codec import decode
from publishers.messages.reports import Notice
from publishers.messages.topics import RunKey
from publishers.shared.process_identity import run_mark
from tests.fakes import USER, FakeGpu, fake_process
from tests.scenarios.site import PRIOR_W, TOPICS, Site, Training, prior_gpu, rate_per_s

QUICK = ("profiler.settle_s=2", "profiler.window_s=10", "profiler.block_s=10", "energy.period_s=5", "plan.period_s=60")
TRUST = "gpu.trust_bus=true"
STRANGERS = frozenset({815})
"""The process of somebody who does not publish."""


def quick(limit_w: float) -> float:
    """Return the rate of a job with short iterations."""
    return 10 * rate_per_s(limit_w)


class Forger(Training):
    """Registers with no GPU: it says whatever it likes."""

    registers = False


def one_gpu(tmp_path: Path, *overrides: str, pids: frozenset[int] | None = None) -> tuple[Site, FakeGpu]:
    """Return a site with one GPU, on which the driver lists these processes; None: it has no list."""
    gpu = prior_gpu()
    gpu.pids = pids
    return Site(tmp_path, [gpu], *QUICK, *overrides), gpu


def forger(site: Site, *, pid: int, run: str = "forged") -> Forger:
    """Return a process of another job that claims the first GPU."""
    return Forger(site, job="forgery", run=run, pid=pid, rate=lambda _: 5.0)


def codes(site: Site, job: str, run: str) -> list[str]:
    """Return what a run was told."""
    payloads = site.bus.payloads(TOPICS.run(RunKey(USER, job, run), "notice"))
    return [decode(payload, Notice).code for payload in payloads]


async def train(*trainings: Training, duration_s: float) -> None:
    """Train several processes at once."""
    async with asyncio.TaskGroup() as tasks:
        for training in trainings:
            tasks.create_task(training.train(duration_s))


async def test_an_invented_process_gets_no_limit_and_is_told_after_a_minute(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, pids=STRANGERS)
    async with site.controlled():
        forged = forger(site, pid=99_999)
        await forged.train(50)
        assert codes(site, "forgery", "forged") == ["heard"]
        await forged.train(300)
    assert codes(site, "forgery", "forged") == ["heard", "claim_unproven"]
    assert gpu.history == []
    assert site.energies("forgery", "forged")[-1].n_gpus == 0, "nor does it see what the GPU draws"


async def test_where_anybody_may_take_any_name_an_account_proves_nothing(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, "bus.username=", pids=STRANGERS)  # anybody can look up their account
    async with site.controlled():
        await forger(site, pid=815).train(300)
    assert codes(site, "forgery", "forged") == ["heard", "claim_unproven"]
    assert gpu.history == []


async def test_a_forged_claim_that_comes_first_does_not_shut_the_owner_out(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, pids=frozenset())
    honest = Training(site, rate=quick)
    async with site.controlled():
        forged = [forger(site, pid=pid, run=f"forged-{pid}") for pid in (100, 99_999)]
        await train(*forged, duration_s=100)  # process 100 is to be the honest one's, and is not there yet
        site.processes.known[100] = (fake_process(100, marks=frozenset({run_mark(RunKey(USER, "resnet50", "run-1"))})),)
        await train(honest, *forged, duration_s=300)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert {change.job for change in site.limits(gpu)} == {"resnet50"}


async def test_a_claim_waits_until_cuda_is_initialised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site, gpu = one_gpu(tmp_path, pids=frozenset())
    async with site.controlled():
        early = Forger(site, rate=quick)
        await early.train(40)
        assert gpu.history == []
        await Training(site, rate=quick).train(100)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert codes(site, "resnet50", "run-1") == ["heard"]
    assert "no limit is set" not in caplog.text


@pytest.mark.parametrize("change", ["left", "shared"])
async def test_a_run_that_is_no_longer_alone_on_its_gpu_loses_its_limit(tmp_path: Path, change: str) -> None:
    site, gpu = one_gpu(tmp_path)
    training = Training(site, rate=quick)
    site.processes.known[815] = (fake_process(815, uid=1_001),)
    async with site.controlled():
        await training.train(100)
        assert gpu.requested_power_limit_w < PRIOR_W
        alone, gpu.pids = gpu.pids, frozenset({815} if change == "left" else {100, 815})
        await _elsewhere(training, 20)
        assert gpu.requested_power_limit_w == PRIOR_W
        assert codes(site, "resnet50", "run-1")[-1] == ("claim_unproven" if change == "left" else "shared")
        assert site.limits(gpu)[-1].reason == ("claim_unproven" if change == "left" else "shared")
        gpu.pids = alone
        await training.train(100)
        assert gpu.requested_power_limit_w < PRIOR_W, "and has it again once it is"


async def _elsewhere(training: Training, duration_s: float) -> None:
    """Train on without a process on the GPU."""
    training.registers = False
    await training.train(duration_s)
    training.registers = True


async def test_where_nothing_can_be_seen_a_run_is_only_measured(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path)
    async with site.controlled():
        await _unlisted(site).train(200)
    assert gpu.history == []
    assert codes(site, "resnet50", "run-1") == ["heard", "claim_unproven"]
    assert site.energies()[-1].energy_j > 0
    assert site.profiles()[-1].state == "observing"


async def test_an_operator_may_trust_what_cannot_be_seen(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, TRUST)
    async with site.controlled():
        await _unlisted(site).train(300)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert codes(site, "resnet50", "run-1") == ["heard"]


async def test_a_trusted_claim_whose_rate_ignores_the_limit_is_dropped(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, TRUST)
    async with site.controlled():
        await forger(site, pid=99_999).train(400)
        assert gpu.history != []
        assert gpu.requested_power_limit_w == PRIOR_W
        assert site.limits(gpu)[-1].reason == "claim_unrelated"
    assert codes(site, "forgery", "forged") == ["heard", "claim_unrelated"]


async def test_a_proven_job_that_waits_for_its_data_keeps_its_curve(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, TRUST)
    async with site.controlled():
        await Training(site, rate=lambda _: 5.0).train(400)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert codes(site, "resnet50", "run-1") == ["heard"]


async def test_trust_does_not_cover_what_the_driver_refutes(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, TRUST, pids=STRANGERS)
    async with site.controlled():
        await forger(site, pid=99_999).train(300)
    assert gpu.history == []


def _unlisted(site: Site) -> Training:
    """Return a training on a GPU whose driver lists no processes."""
    return Forger(site, rate=quick)


@pytest.mark.parametrize("references", [[], [0], ["0"]])
async def test_the_gpu_on_which_a_process_computes_is_found(tmp_path: Path, references: list[str | int]) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    for gpu in gpus:
        gpu.pids = frozenset()
    site = Site(tmp_path, gpus, *QUICK)
    training = Training(site, [gpus[1]], rate=quick, references=references)
    async with site.controlled():
        await training.train(200)
        assert gpus[1].requested_power_limit_w < PRIOR_W
    assert gpus[0].history == [], "an index is a hint: what the driver shows counts"


async def test_a_process_that_computes_nowhere_is_told_so_once(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, pids=frozenset())
    training = Forger(site, rate=quick, references=[])
    async with site.controlled():
        await training.train(300)
    assert gpu.history == []
    assert codes(site, "resnet50", "run-1") == ["heard", "no_gpu"]


async def test_a_proven_claim_takes_the_gpu_from_one_that_was_only_trusted(tmp_path: Path) -> None:
    site, gpu = one_gpu(tmp_path, TRUST)
    forged, honest = Forger(site, job="forgery", run="forged", pid=99_999, rate=quick), Training(site, rate=quick)
    async with site.controlled():
        await forged.train(60)
        assert site.limits(gpu)[-1].job == "forgery"
        await train(forged, honest, duration_s=200)  # from here on the driver lists processes
        forged.publish_status("finished")
        await honest.train(100)
        assert site.limits(gpu)[-1].job == "resnet50"
        assert gpu.requested_power_limit_w < PRIOR_W
    assert site.energies()[-1].n_gpus == 1


@pytest.mark.parametrize("trust", [False, True])
async def test_a_real_process_that_nothing_shows_to_be_the_claimers_needs_trust(tmp_path: Path, *, trust: bool) -> None:
    site, gpu = one_gpu(tmp_path, *([TRUST] if trust else []), pids=STRANGERS)
    site.processes.uids[USER] = None
    async with site.controlled():
        await Forger(site, job="forgery", run="forged", pid=815, rate=quick).train(300)
        assert bool(gpu.history) == trust
    assert codes(site, "forgery", "forged") == (["heard"] if trust else ["heard", "claim_unproven"])


LOOK_S = CHECK_S + 2.0
"""Within this time a look has come, and a limit is restored."""
MARK = run_mark(RunKey(USER, "resnet50", "run-1"))
ALICE, BOB = 1_001, 1_002


def two_gpus(tmp_path: Path, *overrides: str) -> tuple[Site, list[FakeGpu]]:
    """Return a site with two GPUs; process 100 is Alice's and bears the mark."""
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    gpus[1].pids = frozenset()
    site = Site(tmp_path, gpus, *QUICK, "bus.username=", *overrides)
    site.processes.known[100] = (fake_process(100, uid=ALICE, marks=frozenset({MARK})),)
    return site, gpus


def two_gpus_of_alice(tmp_path: Path) -> tuple[Site, list[FakeGpu]]:
    """Return a site with two GPUs; process 101, which bears the mark, too, computes on the second one."""
    site, gpus = two_gpus(tmp_path)
    gpus[1].pids = frozenset({101})
    site.processes.known[101] = (fake_process(101, uid=ALICE, marks=frozenset({MARK})),)
    return site, gpus


async def test_a_mark_of_another_tenant_draws_no_gpu_into_a_run(tmp_path: Path) -> None:
    site, gpus = two_gpus(tmp_path)
    gpus[1].pids = frozenset({815})
    site.processes.known[815] = (fake_process(815, uid=BOB, marks=frozenset({MARK})),)
    async with site.controlled():
        training = Training(site, rate=quick, references=[])
        await training.train(300)
        gpus[1].pids = frozenset({816})  # it has ended, and another job of the same account begins
        site.processes.known[816] = (fake_process(816, uid=BOB),)
        await training.train(300)
        assert gpus[0].requested_power_limit_w < PRIOR_W
    assert gpus[1].history == []
    assert site.energies()[-1].n_gpus == 1


@pytest.mark.parametrize("after", [None, ALICE, BOB])
async def test_a_claim_that_shrinks_gives_the_lost_gpu_back_at_the_next_look(tmp_path: Path, after: int | None) -> None:
    site, gpus = two_gpus_of_alice(tmp_path)
    async with site.controlled():
        training = Training(site, rate=quick, references=[])
        await training.train(300)
        assert all(gpu.requested_power_limit_w < PRIOR_W for gpu in gpus)
        gpus[1].pids = frozenset() if after is None else frozenset({815})
        site.processes.known[815] = (fake_process(815, uid=after or 0),)
        lost_s = site.clock.now_s()
        await training.train(LOOK_S)
        assert gpus[1].requested_power_limit_w == PRIOR_W
        assert gpus[1].history[-1][0] - lost_s <= LOOK_S
        assert site.limits(gpus[1])[-1].reason == "claim_unproven"
        await training.train(300)
        assert gpus[0].requested_power_limit_w < PRIOR_W, "the run goes on with the other one"
        last_s = gpus[1].history[-1][0]
    assert last_s - lost_s <= LOOK_S
    assert site.energies()[-1].n_gpus == 1
    assert codes(site, "resnet50", "run-1") == ["heard"]


async def test_what_a_lost_gpu_draws_is_none_of_the_runs(tmp_path: Path) -> None:
    site, gpus = two_gpus_of_alice(tmp_path)
    async with site.controlled():
        training = Training(site, rate=quick, references=[])
        await training.train(100)
        for pids in (frozenset[int](), frozenset({101}), frozenset[int]()):
            gpus[1].pids = pids
            await training.train(LOOK_S)
        before_j, gpus[1].draw_w = site.energies()[-1].energy_j, lambda _: PRIOR_W
        await training.train(300)
        assert site.energies()[-1].energy_j - before_j < 300 * PRIOR_W + 5 * PRIOR_W


async def test_a_gpu_on_which_another_tenant_begins_is_given_back_at_the_next_look(tmp_path: Path) -> None:
    site, gpus = two_gpus_of_alice(tmp_path)
    site.processes.known[815] = (fake_process(815, uid=BOB),)
    async with site.controlled():
        training = Training(site, rate=quick, references=[])
        await training.train(300)
        gpus[1].pids = frozenset({101, 815})
        await training.train(LOOK_S)
        assert gpus[1].requested_power_limit_w == PRIOR_W
        gpus[1].pids = frozenset({101})
        await training.train(300)
        assert gpus[1].requested_power_limit_w < PRIOR_W, "it is held again once the run is alone"


async def test_a_gpu_that_cannot_be_seen_for_a_while_is_not_lost(tmp_path: Path) -> None:
    site, gpus = two_gpus_of_alice(tmp_path)
    async with site.controlled():
        training = Training(site, rate=quick, references=[])
        await training.train(300)
        gpus[1].pids = None
        await training.train(LOOK_S)
        assert all(gpu.requested_power_limit_w == PRIOR_W for gpu in gpus)
        assert site.energies()[-1].n_gpus == 2
        gpus[1].pids = frozenset({101})
        await training.train(LOOK_S)
        assert all(gpu.requested_power_limit_w < PRIOR_W for gpu in gpus)


@pytest.mark.parametrize("state", ["finished", "lost"])
async def test_the_gpu_of_a_rank_that_has_ended_is_given_back(tmp_path: Path, state: str) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, *QUICK)
    ranks = [Training(site, [gpu], rank=rank, world_size=2, rate=quick) for rank, gpu in enumerate(gpus)]
    async with site.controlled():
        await train(*ranks, duration_s=300)
        assert gpus[1].requested_power_limit_w < PRIOR_W
        ranks[1].publish_status(state)
        await ranks[0].train(ENDING_S + LOOK_S)
        assert gpus[1].requested_power_limit_w == PRIOR_W
        await ranks[0].train(300)
        assert gpus[0].requested_power_limit_w < PRIOR_W
        assert gpus[1].requested_power_limit_w == PRIOR_W


async def test_a_status_that_names_fewer_gpus_gives_the_others_back(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    site = Site(tmp_path, gpus, *QUICK)
    training = Training(site, gpus, rate=quick)
    async with site.controlled():
        await training.train(300)
        training.say(gpus=[gpus[0].uuid])
        await training.train(2)
        assert gpus[1].requested_power_limit_w == PRIOR_W
        await training.train(300)
        assert gpus[0].requested_power_limit_w < PRIOR_W


async def test_of_two_tenants_that_may_be_the_named_process_none_counts(tmp_path: Path) -> None:
    site, gpus = two_gpus(tmp_path)
    for pid, container in ((100, "0::/docker-a.scope"), (200, "0::/docker-b.scope")):
        bearer = fake_process(pid, uid=0, marks=frozenset({MARK}))
        site.processes.known[pid] = (replace(bearer, namespace_pids=(pid, 1), container=container),)
    async with site.controlled():
        training = Forger(site, rate=quick, references=[], pid=1)
        gpus[0].pids = frozenset({100})
        await training.train(200)
        assert gpus[0].requested_power_limit_w < PRIOR_W, "of one tenant it counts"
        gpus[1].pids = frozenset({200})
        await training.train(300)
        assert gpus[0].requested_power_limit_w == PRIOR_W
    assert gpus[1].history == []
    assert codes(site, "resnet50", "run-1") == ["heard", "claim_unproven"]


@pytest.mark.parametrize("marks", [frozenset({MARK}), frozenset[str]()])
async def test_a_process_id_that_another_account_has_next_is_not_the_runs(
    tmp_path: Path, marks: frozenset[str]
) -> None:
    site, gpus = two_gpus(tmp_path, TRUST)
    async with site.controlled():
        training = Forger(site, rate=quick, references=[gpus[0].uuid])
        gpus[0].pids = frozenset({100})
        await training.train(300)
        assert gpus[0].requested_power_limit_w < PRIOR_W
        site.processes.known[100] = (fake_process(100, uid=BOB, marks=marks),)
        await training.train(LOOK_S)
        assert gpus[0].requested_power_limit_w == PRIOR_W
        await training.train(300)
        assert gpus[0].requested_power_limit_w == PRIOR_W
