"""Traces in the format of Zeus's: what is read of them, and every fault at once."""

from dataclasses import replace

import pytest

from policies.replay.batch_size.workload import workloads_of
from policies.replay.traces import JOBS, MAX_FAULTS, TraceError, parse_power, parse_train

TRAIN = """\
# where it is from
dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
cifar100,shufflenetv2,64,adadelta,1e-1,1,0.6,19
cifar100,shufflenetv2,64,adadelta,1e-1,2,0.6,nan
cifar100,shufflenetv2,64,adadelta,1e-1,2,0.5,9
cifar100,shufflenetv2,128,adadelta,1e-1,1,0.6,
cifar100,shufflenetv2,2048,adadelta,1e-1,1,0.6,151
cifar100,shufflenetv2,64,adam,1e-1,1,0.6,3
"""
POWER = """\
dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
cifar100,shufflenetv2,64,adadelta,100,20.5,90.25
cifar100,shufflenetv2,64,adadelta,250,10,200
cifar100,shufflenetv2,128,adadelta,250,9,210
cifar100,shufflenetv2,8192,adadelta,250,7,240
"""


def faults_of(train: str, power: str = POWER) -> tuple[str, ...]:
    with pytest.raises(TraceError) as caught:
        workloads_of(parse_train("train.csv", train), parse_power("gpus/v100.csv", power))
    return caught.value.faults


def test_a_workload_has_what_is_in_both_traces() -> None:
    (job,) = workloads_of(parse_train("train.csv", TRAIN), parse_power("gpus/v100.csv", POWER))
    assert job.name == "cifar100/shufflenetv2@v100"
    assert job.candidates == (64, 128)
    assert job.recorded_epochs == {64: (19.0, None), 128: (None,)}
    assert job.time_per_epoch_s == {(64, 100.0): 20.5, (64, 250.0): 10.0, (128, 250.0): 9.0}
    assert job.average_power_w[64, 100.0] == 90.25
    assert job.max_epochs == 100


def test_a_default_that_does_not_fit_becomes_the_largest_that_does() -> None:
    (job,) = workloads_of(parse_train("train.csv", TRAIN), parse_power("v100.csv", POWER))
    assert job.default == 128


def test_a_default_below_all_batch_sizes_becomes_the_smallest() -> None:
    tiny = replace(JOBS[0], default=2)
    (job,) = workloads_of(parse_train("train.csv", TRAIN), parse_power("v100.csv", POWER), [tiny])
    assert job.default == 64


def test_columns_may_have_another_order_and_extra_columns() -> None:
    header, *rows = POWER.splitlines()
    swapped = "\n".join(",".join([*reversed(line.split(",")), "x"]) for line in [header, *rows])
    (job,) = workloads_of(parse_train("train.csv", TRAIN), parse_power("v100.csv", swapped))
    assert job.time_per_epoch_s[64, 100.0] == 20.5


def test_traces_without_a_common_job_report_the_known_jobs() -> None:
    (fault,) = faults_of(TRAIN, POWER.replace("cifar100", "mnist"))
    assert all(job.name in fault for job in JOBS)


def test_a_batch_size_without_the_target_is_a_fault() -> None:
    (fault,) = faults_of(TRAIN.replace("128,adadelta,1e-1,1,0.6,", "128,adadelta,1e-1,1,0.4,"))
    assert fault == "train.csv: cifar100/shufflenetv2: no row of target 0.6 at the batch sizes [128]"


@pytest.mark.parametrize("epoch", ["nan", "101"])
def test_a_job_that_never_reaches_its_target_in_time_is_a_fault(epoch: str) -> None:
    (fault,) = faults_of(TRAIN.replace("1,0.6,19", f"1,0.6,{epoch}"))
    assert fault == (
        "train.csv: cifar100/shufflenetv2: no run reached target 0.6 within 100 epochs at any batch size that is in "
        "gpus/v100.csv, too: [64, 128]"
    )


def test_a_job_may_reach_its_target_with_its_last_epoch() -> None:
    (job,) = workloads_of(parse_train("t.csv", TRAIN.replace("1,0.6,19", "1,0.6,100")), parse_power("p.csv", POWER))
    assert job.recorded_epochs[64] == (100.0, None)


def test_a_cell_too_long_to_be_read_is_a_fault_with_its_line() -> None:
    long = "9" * 200_000
    assert faults_of(TRAIN, POWER.replace("9,210", f"{long},210") + "cifar100\n") == (
        "gpus/v100.csv:4: field larger than field limit (131072)",
        "gpus/v100.csv:6: 1 cells: must be 7, as in the header",
    )
    assert faults_of(long + TRAIN.replace("# ", "")) == ("train.csv:1: field larger than field limit (131072)",)


def test_all_faults_of_a_training_trace_are_reported_with_their_lines() -> None:
    wrong = TRAIN.replace("64,adadelta,1e-1,1,0.6,19", "sixty,adadelta,1e-1,1,0.6,19").replace(",0.6,151", ",0.6,-3")
    assert faults_of(wrong + "cifar100,shufflenetv2\n" + TRAIN.splitlines()[3] + "\n") == (
        "train.csv:3: batch_size = 'sixty': must be a whole number of at least 1",
        "train.csv:7: target_epoch = '-3': must be a finite number above 0",
        "train.csv:9: 2 cells: must be 8, as in the header",
        "train.csv:10: run 2 at batch size 64 and target 0.6 appears twice",
    )


@pytest.mark.parametrize("cells", ["nan,90", ",90", "20,NaN", "20,", ","])
def test_a_row_without_a_measurement_is_left_out_and_counted(cells: str) -> None:
    trace = parse_power("v100.csv", POWER + f"cifar100,shufflenetv2,64,adadelta,175,{cells}\n")
    whole = parse_power("v100.csv", POWER)
    assert (trace.n_unmeasured, whole.n_unmeasured) == (1, 0)
    assert replace(trace, n_unmeasured=0) == whole


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("cifar100,shufflenetv2,0,adadelta,100,20,90", "batch_size = '0': must be a whole number of at least 1"),
        ("cifar100,shufflenetv2,32,adadelta,inf,20,90", "power_limit = 'inf': must be a finite number above 0"),
        ("cifar100,shufflenetv2,32,adadelta,100,-20,90", "time_per_epoch = '-20': must be a finite number above 0"),
        ("cifar100,shufflenetv2,32,adadelta,100,inf,90", "time_per_epoch = 'inf': must be a finite number above 0"),
        ("cifar100,shufflenetv2,32,adadelta,nan,20,90", "power_limit = 'nan': must be a finite number above 0"),
        ("cifar100,shufflenetv2,32,adadelta,100,20,0", "average_power = '0': must be a finite number above 0"),
        ("cifar100,shufflenetv2,64,adadelta,100,20,90", "batch size 64 at 100 W appears twice"),
    ],
)
def test_a_fault_of_a_power_trace_has_value_and_bound(row: str, fault: str) -> None:
    assert faults_of(TRAIN, POWER + row + "\n") == (f"gpus/v100.csv:6: {fault}",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "t.csv: is empty: must begin with dataset,network,batch_size,"),
        ("# only a comment\n", "t.csv: is empty"),
        ("dataset,network\n", "t.csv:1: the header lacks batch_size, optimizer, "),
    ],
)
def test_a_file_without_its_columns_is_a_fault(text: str, fault: str) -> None:
    with pytest.raises(TraceError, match=r"t\.csv") as caught:
        parse_train("t.csv", text)
    assert caught.value.faults[0].startswith(fault)


def test_the_number_of_reported_faults_is_bounded() -> None:
    row = "cifar100,shufflenetv2,{},adadelta,100,never,90\n"
    faults = faults_of(TRAIN, POWER + "".join(row.format(size) for size in range(300, 400)))
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1] == "and 80 more"
