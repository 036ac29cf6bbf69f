"""Exports a table of the history as CSV, JSON lines or Parquet, by the name of the file."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Connection, Double, Integer

from controller.history.energy_history.query import ReportQuery
from controller.history.energy_history.reading import EXPORTED, Period, exported_columns, exported_rows
from controller.history.energy_history.report import spreadsheet_cell

TABLES: Final = tuple(EXPORTED)
_OF_RUNS: Final = ("run_quarters", "runs")
_Batches = Iterator[Sequence[tuple[Any, ...]]]


def export_faults(path: Path, table: str, query: ReportQuery) -> list[str]:
    """Return what is wrong with the name of the file, or with what is asked for."""
    faults = []
    if path.suffix not in FORMATS:
        faults.append(f"--export {path}: must end in {', '.join(FORMATS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        faults.append(f"--export {path}: needs pyarrow: pip install pyarrow; or choose .csv or .jsonl")
    if table not in _OF_RUNS and any(query.which):
        faults.append(f"--table {table}: is not of runs; leave out --user, --job and --run")
    return faults


def exported(connection: Connection, path: Path, table: str, query: ReportQuery, period: Period | None) -> bytes:
    """Return the content of the file."""
    return FORMATS[path.suffix](exported_columns(table), exported_rows(connection, table, period, query.which))


def _csv(columns: Sequence[Column[Any]], batches: _Batches) -> bytes:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(column.key for column in columns)
    for rows in batches:
        writer.writerows(map(spreadsheet_cell, row) for row in rows)
    return written.getvalue().encode()


def _json_lines(columns: Sequence[Column[Any]], batches: _Batches) -> bytes:
    names = [column.key for column in columns]
    encoder = msgspec.json.Encoder()
    return b"".join(encoder.encode_lines([_named(names, row) for row in rows]) for rows in batches)


def _named(names: Sequence[str], row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row by its names; a record is an object itself, not its text."""
    named = dict(zip(names, row, strict=True))
    return named | {"record": msgspec.Raw(named["record"].encode())} if "record" in named else named


def _parquet(columns: Sequence[Column[Any]], batches: _Batches) -> bytes:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    types = ((Double, arrow.float64()), ((BigInteger, Integer), arrow.int64()), (Boolean, arrow.bool_()))
    schema = arrow.schema(
        (column.key, next((type_ for sql, type_ in types if isinstance(column.type, sql)), arrow.string()))
        for column in columns
    )
    written = io.BytesIO()
    with parquet.ParquetWriter(written, schema) as writer:
        for rows in batches:
            arrays = [
                arrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
    return written.getvalue()


FORMATS: Final[dict[str, Callable[[Sequence[Column[Any]], _Batches], bytes]]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
