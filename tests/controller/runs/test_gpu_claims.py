"""GPU claims: a GPU by any of its names, all that a run names or none, one run a board."""

import pytest

from controller.ports import Gpu
from controller.runs.gpu_claims import ClaimRejection, GpuClaims, resolve
from publishers.messages.topics import RunKey
from tests.fakes import FakeGpu

GPUS = [FakeGpu("GPU-0aaa1111-x", index=0), FakeGpu("GPU-0aaa2222-x", index=1), FakeGpu("GPU-0bbb3333-x", index=2)]
ME = RunKey("alice", "resnet50", "run-1")
OTHER = RunKey("bob", "bert", "run-9")
THIRD = RunKey("carol", "gpt", "run-3")


def rejected(result: list[Gpu] | ClaimRejection, code: str) -> str:
    """Return the sentence of a rejection with a code."""
    assert isinstance(result, ClaimRejection)
    assert result.code == code
    return result.detail


@pytest.mark.parametrize(
    ("reference", "index"),
    [("GPU-0aaa2222-x", 1), ("GPU-0bbb", 2), (0, 0), ("2", 2), (2, 2)],
)
def test_a_gpu_is_resolved_by_its_uuid_a_prefix_or_its_index(reference: str | int, index: int) -> None:
    assert resolve(reference, GPUS) is GPUS[index]


@pytest.mark.parametrize("reference", ["GPU-0aaa", "GPU-", "", "GPU-0ccc4444", 3, "3", "9" * 90, "-1", "nodev"])
def test_an_unknown_or_ambiguous_reference_is_rejected_with_the_known_gpus(reference: str | int) -> None:
    assert "2 = GPU-0bbb3333-x" in rejected(GpuClaims(GPUS).claim(ME, 0, [reference]), "gpu_unknown")


def test_a_mig_instance_is_rejected_because_a_limit_would_affect_every_tenant() -> None:
    assert "every tenant" in rejected(GpuClaims(GPUS).claim(ME, 0, ["MIG-GPU-0aaa1111-x/1/0"]), "mig_instance")


def test_on_a_node_without_gpus_the_rejection_says_so() -> None:
    assert rejected(GpuClaims([]).claim(ME, 0, [0]), "gpu_unknown").endswith("there is none")


def test_a_run_gets_every_gpu_that_it_names_in_its_order() -> None:
    claims = GpuClaims(GPUS)
    assert claims.claim(ME, 0, [2, "GPU-0aaa1111-x"]) == [GPUS[2], GPUS[0]]
    assert claims.owned == {ME: {GPUS[2].uuid, GPUS[0].uuid}}
    assert claims.claim(ME, 1, [0]) == [GPUS[0]], "again, for another rank"


def test_one_unknown_gpu_rejects_the_whole_claim() -> None:
    claims = GpuClaims(GPUS)
    rejected(claims.claim(ME, 0, [0, 7]), "gpu_unknown")
    assert claims.owned == {}


def test_one_gpu_of_another_run_rejects_the_whole_claim_and_names_the_owner() -> None:
    claims = GpuClaims(GPUS)
    claims.claim(OTHER, 0, [1])
    result = claims.claim(ME, 0, [0, 1])
    assert "bert/run-9" in rejected(result, "gpu_taken")
    assert isinstance(result, ClaimRejection)
    assert result.owner == OTHER
    assert ME not in claims.owned


def test_a_run_that_names_no_gpu_is_told_how_to() -> None:
    assert "CUDA_VISIBLE_DEVICES" in rejected(GpuClaims(GPUS).claim(ME, 0, []), "no_gpu")


def waiting() -> GpuClaims:
    """Return claims of which one run owns a GPU that two ranks of each of two others wait for."""
    claims = GpuClaims(GPUS)
    claims.claim(ME, 0, [0, 1])
    for run in (OTHER, THIRD):
        for rank in (1, 0):
            claims.claim(run, rank, [0])
    return claims


def test_the_end_of_a_run_frees_its_gpus_for_the_oldest_run_alone() -> None:
    claims = waiting()
    claims.claim(OTHER, 0, [0])  # a heartbeat does not change who comes first
    granted = [(run, rank) for run, rank in claims.release(ME) if isinstance(claims.claim(run, rank, [0]), list)]
    assert granted == [(OTHER, 0), (OTHER, 1)]
    assert claims.owned == {OTHER: {GPUS[0].uuid}}
    assert [run for run, _ in claims.release(OTHER)] == [THIRD, THIRD]


def test_of_several_freed_gpus_the_oldest_run_gets_its_own_first() -> None:
    claims = GpuClaims(GPUS)
    claims.claim(ME, 0, [0, 1, 2])
    references: dict[RunKey, list[str | int]] = {OTHER: [1, 2], THIRD: [0, 2]}
    for run, gpus in references.items():
        claims.claim(run, 0, gpus)
    retried = [(run, isinstance(claims.claim(run, rank, references[run]), list)) for run, rank in claims.release(ME)]
    assert retried == [(OTHER, True), (THIRD, False)]


def test_a_waiting_claim_that_still_fails_does_not_hold_up_the_next_run() -> None:
    claims = waiting()
    retried = list(claims.release(ME))  # nobody claims again: each rank has ended meanwhile, say
    assert retried == [(OTHER, 0), (OTHER, 1), (THIRD, 0), (THIRD, 1)]


def test_a_run_that_has_ended_waits_for_nothing() -> None:
    claims = waiting()
    assert list(claims.release(OTHER)) == []
    assert [run for run, _ in claims.release(ME)] == [THIRD, THIRD]


def test_the_end_of_a_run_costs_no_more_the_more_runs_wait() -> None:
    claims = GpuClaims(GPUS)
    claims.claim(ME, 0, [0])
    for number in range(255):
        for rank in range(16):
            claims.claim(RunKey("bob", "bert", f"run-{number}"), rank, [0])
    n_claims = 0
    for run, rank in claims.release(ME):
        n_claims += 1
        claims.claim(run, rank, [0])
    assert n_claims == 16, "the ranks of the oldest run"
