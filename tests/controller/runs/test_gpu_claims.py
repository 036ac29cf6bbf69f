"""GPU claims: a GPU by any of its names, all that a run claims or none, one run a board, the surer claim first."""

import pytest

from controller.ports import UNLISTED
from controller.runs.gpu_claims import ClaimRejection, GpuClaims, Standing, is_index, resolve
from publishers.messages.topics import RunKey
from tests.fakes import KEY as ME
from tests.fakes import USER, FakeGpu

GPUS = [FakeGpu("GPU-0aaa1111-x", index=0), FakeGpu("GPU-0aaa2222-x", index=1), FakeGpu("GPU-0bbb3333-x", index=2)]
OTHER = RunKey(USER, "bert", "run-9")


@pytest.mark.parametrize(
    ("reference", "index"),
    [("GPU-0aaa2222-x", 1), ("GPU-0bbb", 2), ("GPU-0b", 2), (0, 0), ("2", 2), (2, 2)],
)
def test_a_gpu_is_resolved_by_its_uuid_a_prefix_or_its_index(reference: str | int, index: int) -> None:
    assert resolve(reference, GPUS) is GPUS[index]


def test_indices_are_told_from_names() -> None:
    assert [is_index(each) for each in (0, "2", "GPU-0aaa1111-x", "MIG-1", "")] == [True, True, False, False, False]


@pytest.mark.parametrize(
    "reference", ["GPU-0aaa", "GPU-0", "GPU-", "G", "", "GPU-0ccc4444", 3, "3", "9" * 90, "-1", "nodev"]
)
def test_an_unknown_or_ambiguous_reference_is_rejected_with_the_known_gpus(reference: str | int) -> None:
    result = resolve(reference, GPUS)
    assert isinstance(result, ClaimRejection)
    assert result.code == "gpu_unknown"
    assert "2 = GPU-0bbb3333-x" in result.detail


def test_a_beginning_of_several_uuids_is_told_as_ambiguous() -> None:
    result = resolve("GPU-0a", GPUS)
    assert isinstance(result, ClaimRejection)
    assert result.detail.startswith("'GPU-0a' is the beginning of 2 GPUs on this node; it has 0 = ")
    for reference in ("GPU-", "G", "GPU"):
        assert isinstance(resolve(reference, GPUS[:1]), ClaimRejection)


def test_a_gpu_that_the_driver_lists_no_more_has_no_index_to_claim_it_by() -> None:
    gone = FakeGpu("GPU-gone", index=UNLISTED)
    result = resolve(UNLISTED, [gone, GPUS[0]])
    assert isinstance(result, ClaimRejection)
    assert result.detail.endswith("it has 0 = GPU-0aaa1111-x")
    assert resolve("GPU-gone", [gone]) is gone


def test_a_mig_instance_is_rejected_because_a_limit_would_affect_every_tenant() -> None:
    result = resolve("MIG-GPU-0aaa1111-x/1/0", GPUS)
    assert isinstance(result, ClaimRejection)
    assert (result.code, "every tenant" in result.detail) == ("mig_instance", True)


def test_on_a_node_without_gpus_the_rejection_says_so() -> None:
    result = resolve(0, [])
    assert isinstance(result, ClaimRejection)
    assert result.detail.endswith("it has none")


def test_a_run_gets_every_gpu_that_it_claims() -> None:
    claims = GpuClaims()
    assert claims.claim(ME, [GPUS[2], GPUS[0]], Standing.PROVEN) == []
    assert claims.claim(ME, [GPUS[0]], Standing.PROVEN) == [], "again, for another rank"
    assert claims.owned == {ME: {GPUS[2].uuid, GPUS[0].uuid}}


@pytest.mark.parametrize("standing", Standing)
def test_one_gpu_of_another_run_rejects_the_whole_claim_and_names_the_owner(standing: Standing) -> None:
    claims = GpuClaims()
    claims.claim(OTHER, [GPUS[1]], standing)
    result = claims.claim(ME, [GPUS[0], GPUS[1]], standing)
    assert isinstance(result, ClaimRejection)
    assert (result.code, result.owner) == ("gpu_taken", OTHER)
    assert "bert/run-9" in result.detail
    assert ME not in claims.owned


def test_a_surer_claim_takes_the_gpu_of_one_that_is_less_so() -> None:
    claims = GpuClaims()
    claims.claim(OTHER, GPUS[:2], Standing.TRUSTED)
    assert claims.claim(ME, [GPUS[1]], Standing.PROVEN) == [(OTHER, GPUS[1].uuid)]
    assert claims.owned == {OTHER: {GPUS[0].uuid}, ME: {GPUS[1].uuid}}
    assert isinstance(claims.claim(OTHER, GPUS[:2], Standing.TRUSTED), ClaimRejection)


def test_a_claim_that_is_not_proven_any_more_gives_way() -> None:
    claims = GpuClaims()
    claims.claim(OTHER, [GPUS[0]], Standing.PROVEN)
    claims.weaken(OTHER)
    assert claims.claim(ME, [GPUS[0]], Standing.PROVEN) == [(OTHER, GPUS[0].uuid)]


def test_a_gpu_that_a_run_gives_up_is_free_and_the_others_are_not() -> None:
    claims = GpuClaims()
    claims.claim(OTHER, GPUS[:2], Standing.PROVEN)
    claims.give_up(OTHER, GPUS[0].uuid)
    assert claims.owned == {OTHER: {GPUS[1].uuid}}
    assert claims.claim(ME, [GPUS[0]], Standing.OBSERVED) == []
    assert isinstance(claims.claim(ME, [GPUS[1]], Standing.PROVEN), ClaimRejection)


def test_the_end_of_a_run_frees_its_gpus() -> None:
    claims = GpuClaims()
    claims.claim(OTHER, GPUS[:2], Standing.PROVEN)
    assert claims.release(OTHER) == {GPUS[0].uuid, GPUS[1].uuid}
    assert claims.release(OTHER) == set()
    assert claims.claim(ME, GPUS, Standing.OBSERVED) == []
