"""Claims: a GPU by any of its names, all that a run names or none, one run a board."""

import pytest

from controller.runs.gpu_claims import ClaimRejection, grant, resolve
from tests.fakes import FakeGpu

GPUS = [FakeGpu("GPU-0aaa1111-x", index=0), FakeGpu("GPU-0aaa2222-x", index=1), FakeGpu("GPU-0bbb3333-x", index=2)]
ME = "resnet50/run-1"


@pytest.mark.parametrize(
    ("reference", "index"),
    [("GPU-0aaa2222-x", 1), ("GPU-0bbb", 2), (0, 0), ("2", 2), (2, 2)],
)
def test_a_gpu_is_known_by_its_uuid_its_beginning_and_its_index(reference: str | int, index: int) -> None:
    assert resolve(reference, GPUS) is GPUS[index]


@pytest.mark.parametrize("reference", ["GPU-0aaa", "GPU-", "", "GPU-0ccc4444", 3, "3", "9" * 90, "-1", "nodev"])
def test_what_names_no_gpu_or_several_is_refused_with_what_there_is(reference: str | int) -> None:
    refusal = resolve(reference, GPUS)
    assert isinstance(refusal, ClaimRejection)
    assert refusal.code == "gpu_unknown"
    assert "2 = GPU-0bbb3333-x" in refusal.detail


def test_a_mig_instance_is_refused_because_a_limit_would_hit_every_tenant() -> None:
    refusal = resolve("MIG-GPU-0aaa1111-x/1/0", GPUS)
    assert isinstance(refusal, ClaimRejection)
    assert refusal.code == "mig_instance"


def test_on_a_node_without_gpus_the_refusal_says_so() -> None:
    refusal = resolve(0, [])
    assert isinstance(refusal, ClaimRejection)
    assert refusal.detail.endswith("there is none")


def test_a_run_gets_every_gpu_that_it_names_in_its_order() -> None:
    assert grant([2, "GPU-0aaa1111-x"], gpus=GPUS, owners={}, claimant=ME) == [GPUS[2], GPUS[0]]


def test_one_gpu_that_is_not_there_refuses_them_all() -> None:
    refusal = grant([0, 7], gpus=GPUS, owners={}, claimant=ME)
    assert isinstance(refusal, ClaimRejection)
    assert refusal.code == "gpu_unknown"


def test_one_gpu_of_another_run_refuses_them_all_and_names_the_owner() -> None:
    refusal = grant([0, 1], gpus=GPUS, owners={GPUS[1].uuid: "bert/run-9"}, claimant=ME)
    assert isinstance(refusal, ClaimRejection)
    assert refusal.code == "gpu_taken"
    assert "bert/run-9" in refusal.detail


def test_what_a_run_has_already_it_gets_again() -> None:
    assert grant([0], gpus=GPUS, owners={GPUS[0].uuid: ME}, claimant=ME) == [GPUS[0]]


def test_a_run_that_names_no_gpu_is_told_how_to() -> None:
    refusal = grant([], gpus=GPUS, owners={}, claimant=ME)
    assert isinstance(refusal, ClaimRejection)
    assert refusal.code == "no_gpu"
    assert "CUDA_VISIBLE_DEVICES" in refusal.detail
