"""A row for each run in a CSV file with the columns of CodeCarbon's `emissions.csv`: `emissions_file=`.

Energies are those of the run's GPUs, as the controller measures them. What it does not measure (CPU, RAM, water, place)
is empty, not 0, and so are emissions without a carbon signal: pandas reads NaN. Imported where a file is asked for.
"""

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from publishers.messages.reports import RunEnergy
from publishers.training.coerce import warn_once

COLUMNS: Final = (
    "timestamp",
    "project_name",
    "run_id",
    "experiment_id",
    "duration",
    "emissions",
    "emissions_rate",
    "cpu_power",
    "gpu_power",
    "ram_power",
    "cpu_energy",
    "gpu_energy",
    "ram_energy",
    "energy_consumed",
    "water_consumed",
    "country_name",
    "country_iso_code",
    "region",
    "cloud_provider",
    "cloud_region",
    "os",
    "python_version",
    "codecarbon_version",
    "cpu_count",
    "cpu_model",
    "gpu_count",
    "gpu_model",
    "longitude",
    "latitude",
    "ram_total_size",
    "tracking_mode",
    "cpu_utilization_percent",
    "gpu_utilization_percent",
    "ram_utilization_percent",
    "ram_used_gb",
    "on_cloud",
    "pue",
    "wue",
)
"""Those of CodeCarbon 3.3, in its order; a file with other ones of its keeps its own."""
_ESSENTIAL: Final = frozenset({"timestamp", "project_name", "run_id", "duration", "emissions", "energy_consumed"})
"""Columns that every version of CodeCarbon has: a file without them is another one."""
_MAX_HEADER: Final = 16_384
_J_PER_KWH: Final = 3.6e6


class EmissionsFile:
    """A file of CodeCarbon's form, to which runs of a job append their rows.

    Args:
        path: the file; it is made where there is none.
        job: the job, CodeCarbon's project.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._job = job

    def append(self, record: RunEnergy, *, at: datetime) -> None:
        """Append the row of a run, with the columns in the order of the file; what fails is told once.

        Args:
            record: the newest record of its energy.
            at: local time of its end.
        """
        path = self._path
        try:
            columns, tail = _columns_of(path)
            if columns is not None and not _ESSENTIAL.issubset(columns):
                warn_once(f"emissions are not written: {path} is no file of CodeCarbon's; pass another emissions_file=")
                return
            text = _as_csv([_row(record, job=self._job, at=at)], columns or COLUMNS, has_header=columns is None)
            with path.open("ab") as file:  # one write, since several runs may end at once
                file.write((tail + text).encode())
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_once(f"emissions are not written to {path}: {error}")


def _columns_of(path: Path) -> tuple[list[str] | None, str]:
    """Return the columns of a file (None: it is empty or not there), and what its last line lacks: its end, or nothing.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text.
    """
    try:
        with path.open("rb") as file:
            head = file.readline(_MAX_HEADER)
            if not head:
                return None, ""
            file.seek(-1, os.SEEK_END)
            tail = "" if file.read(1) == b"\n" else "\n"
    except FileNotFoundError:
        return None, ""
    return next(csv.reader([head.decode("utf-8-sig").strip()]), []), tail


def _as_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, has_header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(record: RunEnergy, *, job: str, at: datetime) -> dict[str, object]:
    """Return what is known, by column: powers in W, energies in kWh, emissions in kg, times in s."""
    energy_kwh, duration_s = record.energy_j / _J_PER_KWH, record.duration_s
    emissions_kg = None if record.carbon_g is None else record.carbon_g / 1_000
    return {
        "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S"),
        "project_name": job,
        "run_id": record.run,
        "duration": duration_s,
        "emissions": emissions_kg,
        "emissions_rate": None if emissions_kg is None or not duration_s else emissions_kg / duration_s,
        "gpu_power": record.energy_j / duration_s if duration_s else None,
        "gpu_energy": energy_kwh,
        "energy_consumed": energy_kwh,
        "os": platform.platform(),
        "python_version": platform.python_version(),
        "codecarbon_version": f"gridchase {_version()}",
        "gpu_count": record.n_gpus,
        "gpu_model": f"{record.n_gpus} x {record.gpu_model}",
        "tracking_mode": "process",
    }


def _version() -> str:
    try:
        return metadata.version("gridchase")
    except metadata.PackageNotFoundError:
        return "unknown"
