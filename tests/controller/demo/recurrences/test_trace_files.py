"""Workloads from files: the three that come along, and every fault of those that are named."""

from pathlib import Path

import pytest

from controller.demo.recurrences.trace_files import INCLUDED, included_workloads, read_workloads
from controller.errors import ConfigError
from policies.replay.batch_size.workload import optimum


def test_three_jobs_are_included() -> None:
    jobs = included_workloads()
    assert [job.name for job in jobs] == [
        "cifar100/shufflenetv2@v100",
        "librispeech/deepspeech2@v100",
        "movielens-1m/ncf@v100",
    ]
    assert [len(job.candidates) for job in jobs] == [10, 15, 13]
    assert all(job.always_reaches(job.default) for job in jobs)
    assert all(len(job.limits_of(size)) == len(job.power_limits_w) for job in jobs for size in job.candidates)


def test_their_best_batch_sizes_are_those_of_the_paper() -> None:
    """Zeus, fig. 6 and table 1: smaller for CIFAR-100 and LibriSpeech, larger for MovieLens."""
    jobs = included_workloads()
    assert [optimum(job, eta=0.5).batch_size for job in jobs] == [128, 48, 16384]
    assert [job.default for job in jobs] == [1024, 192, 1024]


def test_all_faults_of_all_files_are_reported(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.csv", tmp_path / "binary.csv"
    broken.write_text("a,b\n1,2\n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        read_workloads(tmp_path / "missing.csv", [broken, binary])
    missing, header, coding = caught.value.faults
    assert missing == f"{tmp_path / 'missing.csv'}: No such file or directory"
    assert header.startswith(f"{broken}:1: the header lacks dataset")
    assert coding.startswith(f"{binary}: is not UTF-8 text")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "v100.csv"
    other.write_bytes((INCLUDED / "v100.csv").read_bytes())
    with pytest.raises(ConfigError, match="rename one"):
        read_workloads(INCLUDED / "train.csv", [INCLUDED / "v100.csv", other])


@pytest.mark.parametrize(
    ("n", "told"), [(0, ""), (1, "1 row has no time_per_epoch"), (2, "2 rows have no time_per_epoch")]
)
def test_rows_without_a_measurement_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int, told: str
) -> None:
    power = tmp_path / "gpu.csv"
    rows = [f"cifar100,shufflenetv2,1024,adam,{100 + i},nan,80\n" for i in range(n)]
    power.write_text((INCLUDED / "v100.csv").read_text(encoding="utf-8") + "".join(rows), encoding="utf-8")
    workloads = read_workloads(INCLUDED / "train.csv", [power])
    assert [job.time_per_epoch_s for job in workloads] == [job.time_per_epoch_s for job in included_workloads()]
    err = capsys.readouterr().err
    assert err.startswith(f"{power}: {told}") if told else not err
