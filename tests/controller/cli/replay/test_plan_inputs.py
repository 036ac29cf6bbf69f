"""What plans are replayed on: which curve of a file is meant, and what a signal's file lacks."""

from pathlib import Path

import pytest

from controller.cli.replay.plan_inputs import CurveSelection, read_curve, read_signals

HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"


def power(folder: Path, *curves: tuple[str, str, int, str]) -> Path:
    """Write the curves of some workloads, each (dataset, network, batch size, optimizer), at two limits."""
    path = folder / "p100.csv"
    lines = [
        f"{dataset},{network},{size},{optimizer},{limit_w},{time_s},{limit_w - 10}"
        for dataset, network, size, optimizer in curves
        for limit_w, time_s in ((100, 120.0), (200, 80.0))
    ]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


def signal(folder: Path, *values: str, unit: str = "gco2_per_kwh") -> Path:
    """Write the values of hours; an hour without a row is -."""
    path = folder / "grid.csv"
    rows = [f"2024-01-01T{hour:02}:00Z,{value}" for hour, value in enumerate(values) if value != "-"]
    path.write_text("\n".join([f"timestamp,{unit}", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (("imagenet", "resnet50", 256, "adam"), "--optimizer"),
        (("imagenet", "resnet50", 128, "adadelta"), "--batch-size"),
        (("imagenet", "vit", 256, "adadelta"), "--workload"),
        (("cifar100", "resnet50", 256, "adam"), "--workload"),
    ],
)
def test_an_ambiguous_curve_names_the_option_that_distinguishes(
    tmp_path: Path, other: tuple[str, str, int, str], options: str
) -> None:
    faults: list[str] = []
    path = power(tmp_path, ("imagenet", "resnet50", 256, "adadelta"), other)
    assert read_curve(path, CurveSelection(workload=None, batch_size=None, optimizer=None), faults) is None
    (told,) = faults
    assert told.endswith(f"; say which with {options}")


def test_several_options_may_be_needed_to_distinguish_curves(tmp_path: Path) -> None:
    faults: list[str] = []
    curves = [("imagenet", "vit", size, name) for size in (64, 128) for name in ("adam", "sgd")]
    wanted = CurveSelection(workload="imagenet/vit", batch_size=None, optimizer=None)
    assert read_curve(power(tmp_path, *curves), wanted, faults) is None
    assert faults[0].endswith("; say which with --batch-size and --optimizer")
    named = CurveSelection(workload=None, batch_size=64, optimizer="sgd")
    assert read_curve(power(tmp_path, *curves), named, []) is not None


@pytest.mark.parametrize(
    ("values", "unit", "losses"),
    [
        (("300",) * 10, "gco2_per_kwh", ""),
        (("300", "0", "", "200", "-", "-", *("300",) * 4), "gco2_per_kwh",
         "1 gap, 2 missing values (carbon that is not above 0 is missing), 40 % of its time"),
        (("300", "-", *("200",) * 8), "gco2_per_kwh", "1 gap, 10 % of its time"),
        (("0", "-1", "", *("30",) * 7), "eur_per_mwh", "1 missing value, 10 % of its time"),
    ],
)  # fmt: skip
def test_missing_values_of_a_signal_file_are_counted(
    tmp_path: Path, values: tuple[str, ...], unit: str, losses: str
) -> None:
    faults: list[str] = []
    (reading,) = read_signals([signal(tmp_path, *values, unit=unit)], faults)
    assert (reading.losses, faults) == (losses, [])
