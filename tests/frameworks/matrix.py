"""Every framework and launcher, with accumulation, validation and resumption, beside each training's own account.

`python -m tests.frameworks.matrix` trains each row twice, bare and published, and prints the table; `--write` writes it
to `docs/frameworks-matrix.md`. It needs the environment of `make test-frameworks`, and a mosquitto; about ten minutes.
"""

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import platform
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.frameworks.bus import Record, listening
from tests.frameworks.process import ROOT, TRAININGS, Launcher, Outcome, command, train
from tests.live.conftest import Mosquitto

TABLE: Final = ROOT / "docs" / "frameworks-matrix.md"
_STOP_AFTER: Final = 50
_PACKAGES: Final = ("torch", "transformers", "lightning", "accelerate", "keras", "jax", "flax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row: a training script, what publishes it, and how it is run.

    Attributes:
        framework: what it is a training of.
        by: what is in the script, or in front of it.
        script: the name of the training.
        arguments: what the script is asked.
        ours: what it is asked in addition where it is published.
        launcher: what starts it.
        ranks: how many processes train.
        accumulation: how many batches make a step.
        has_validation: whether it validates in each epoch.
        is_resumed: whether it is stopped in its second epoch, and another process goes on.
        runs_verb: whether `gridchase run` is in front of it.
        variables: of its environment.
    """

    framework: str
    by: str
    script: str
    arguments: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    launcher: Launcher = "python"
    ranks: int = 1
    accumulation: int = 1
    has_validation: bool = False
    is_resumed: bool = False
    runs_verb: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def launcher_name(self) -> str:
        """Return what starts it, for people."""
        return "its own" if self.launcher == "python" and self.ranks > 1 else self.launcher

    def line(self, *more: str) -> list[str]:
        """Return the command line."""
        arguments = [f"--accumulation={self.accumulation}", *self.arguments, *more]
        if self.has_validation:
            arguments.append("--validation")
        return command(TRAININGS / f"{self.script}.py", arguments, self.launcher, self.ranks)


_LINE: Final = "`publish_iterations`"
_VERB: Final = "`gridchase run`"
_TORCH: Final = Case(framework="PyTorch", by=_LINE, script="with_torch", ours=("--wrap",))
_TORCH_RUN: Final = replace(_TORCH, by=_VERB, ours=(), runs_verb=True)
_HF: Final = Case(framework="Transformers", by="callback", script="with_transformers", ours=("--callback",))
_LIGHTNING: Final = Case(framework="Lightning", by="nothing: it is found", script="with_lightning")
_ACCELERATE: Final = Case(framework="Accelerate", by="tracker", script="with_accelerate", ours=("--callback",))
_PREPARED: Final = replace(_ACCELERATE, by=f"{_LINE} before `prepare`", ours=("--wrap",))
_KERAS: Final = Case(
    framework="Keras on jax",
    by="callback",
    script="with_keras",
    ours=("--callback",),
    variables={"KERAS_BACKEND": "jax"},
)
_KERAS_TORCH: Final = replace(_KERAS, framework="Keras on torch", variables={"KERAS_BACKEND": "torch"})
CASES: Final = (
    _TORCH,
    replace(_TORCH, accumulation=4, has_validation=True),
    replace(_TORCH, launcher="torchrun", ranks=2, has_validation=True),
    replace(_TORCH, launcher="torchrun", ranks=2, accumulation=4),
    replace(_TORCH_RUN, has_validation=True),
    replace(_TORCH_RUN, launcher="torchrun", ranks=2, accumulation=4),
    _HF,
    replace(_HF, accumulation=8, has_validation=True),
    replace(_HF, is_resumed=True),
    replace(_HF, launcher="torchrun", ranks=2, has_validation=True),
    replace(_HF, launcher="torchrun", ranks=2, accumulation=8),
    replace(_HF, by=_VERB, ours=(), runs_verb=True, accumulation=8, has_validation=True),
    _LIGHTNING,
    replace(_LIGHTNING, accumulation=4, has_validation=True),
    replace(_LIGHTNING, is_resumed=True),
    replace(_LIGHTNING, ranks=2, arguments=("--devices=2",), has_validation=True),
    replace(_LIGHTNING, ranks=2, arguments=("--devices=2",), accumulation=4),
    replace(
        _LIGHTNING,
        framework="Lightning as `pytorch_lightning`",
        arguments=("--package=pytorch_lightning",),
        accumulation=4,
        has_validation=True,
    ),
    replace(_ACCELERATE, accumulation=4, has_validation=True),
    replace(_ACCELERATE, launcher="torchrun", ranks=2, accumulation=4),
    _PREPARED,
    replace(_PREPARED, launcher="torchrun", ranks=2, has_validation=True),
    replace(
        _PREPARED, framework="Accelerate, IterableDataset", launcher="torchrun", ranks=2, arguments=("--iterable",)
    ),
    replace(_KERAS, has_validation=True),
    replace(_KERAS, is_resumed=True),
    replace(
        _KERAS,
        framework="Keras on jax, 8 steps at once",
        arguments=("--steps-per-execution=8",),
        has_validation=True,
    ),
    replace(_KERAS, by=_VERB, ours=(), runs_verb=True, has_validation=True),
    replace(_KERAS_TORCH, has_validation=True),
    replace(_KERAS_TORCH, is_resumed=True),
    Case(framework="JAX, flax", by="`publisher.wait_for(loss)`", script="with_flax", ours=("--callback",)),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What has become of a case: the steps of each rank by its own account, and what was published of each."""

    true: list[int]
    published: list[int]
    counted_by: str
    n_runs: int
    states: set[tuple[str, ...]]
    has_same_batches: bool

    @property
    def is_right(self) -> bool:
        """Return whether each rank was counted exactly, in one run with an end, and trained as without us."""
        return self.true == self.published and self.has_same_batches and self.states == {("running", "finished")}


def measure(case: Case, folder: Path) -> Result:
    """Train a case bare and published.

    Raises:
        RuntimeError: a training has failed.
    """
    parts: list[tuple[str, ...]] = [()]
    if case.is_resumed:  # Keras is resumed by the number of its epoch
        stop = "--epochs=1" if case.script == "with_keras" else f"--stop-after={_STOP_AFTER}"
        parts = [(stop,), ("--resume",)]
    truths: dict[str, list[Outcome]] = {"bare": [], "published": []}
    folder.mkdir()
    broker = Mosquitto(folder, "listener {port} 127.0.0.1\nallow_anonymous true\n")
    broker.start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        bus = stack.enter_context(listening(broker.port))
        for how, outcomes in truths.items():
            for k, words in enumerate(parts):
                save = (f"--save={folder / how / 'checkpoints'}",) if case.is_resumed else ()
                outcomes.append(_train(case, how, (*words, *save), folder / how / str(k), broker.url))
        n_records = case.ranks * len(parts)
        records = bus.records(n_records)
    return _result(case, truths, records)


def _train(case: Case, how: str, words: tuple[str, ...], folder: Path, url: str) -> Outcome:
    if how == "bare":
        outcome = train(case.line(*words), folder, **case.variables)
    else:
        line = case.line(*words, *case.ours)
        ours = {"GRIDCHASE_BROKER": url, "GRIDCHASE_QUIET": "1"}
        if case.runs_verb:
            line = [sys.executable, "-m", "gridchase", "run", "--", *line]
        else:
            ours["GRIDCHASE_JOB"] = "toy"
        outcome = train(line, folder, **(case.variables | ours))
    if outcome.exit_code:
        raise RuntimeError(f"{case}: {how}: {outcome.stderr[-2_000:]}")
    return outcome


def _result(case: Case, truths: dict[str, list[Outcome]], records: list[Record]) -> Result:
    published = truths["published"]
    digests = {how: [truth["digest"] for o in outcomes for truth in o.truths] for how, outcomes in truths.items()}
    counted_by = sorted(set().union(*(record.counted_by for record in records)))
    return Result(
        true=[truth["steps"] for outcome in published for truth in outcome.truths],
        published=[record.n_iterations for record in records],
        counted_by=", ".join(counted_by),
        n_runs=len({record.run for record in records}) if records else 0,
        states={tuple(record.states) for record in records},
        has_same_batches=digests["bare"] == digests["published"] and len(records) == case.ranks * len(published),
    )


def row(case: Case, result: Result) -> str:
    """Return a row of the table."""

    def numbers(counts: list[int]) -> str:
        by_process = [counts[k : k + case.ranks] for k in range(0, len(counts), case.ranks)]
        return ", then ".join(" and ".join(map(str, counts)) for counts in by_process)

    cells = (
        case.framework,
        case.by,
        case.launcher_name,
        str(case.ranks),
        str(case.accumulation),
        "yes" if case.has_validation else "no",
        "yes" if case.is_resumed else "no",
        numbers(result.true),
        numbers(result.published),
        result.counted_by,
        str(result.n_runs),
        str(len(result.published)),
        "the same" if result.has_same_batches else "**others**",
    )
    return f"| {' | '.join(cells)} |"


def table(rows: list[str]) -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    today = dt.datetime.now(tz=dt.UTC).date()
    heads = ("framework", "what is in the script", "launcher", "ranks", "batches a step", "validation", "resumed")
    more = ("true steps", "published", "counted by", "runs", "records with one end", "batches")
    return "\n".join(
        [
            "# Frameworks: what is counted, beside what was trained",
            "",
            "For ML engineers.",
            "",
            "Each row is a real training in processes of its own with a real broker, made by `make frameworks-matrix`:",
            "two epochs of 320 samples in batches of 8. True are the steps that the script's own optimizer counts on",
            "each rank; “the same” batches, in their order, are those of a training without gridchase. One that",
            "is resumed is two processes, and so two runs.",
            "",
            f"| {' | '.join((*heads, *more))} |",
            f"|{'---|' * len((*heads, *more))}",
            *rows,
            "",
            f"Made on {today}, on CPUs, with Python {platform.python_version()}, {versions}.",
            "",
        ]
    )


def main() -> int:
    """Print the table; return 1 where a row is not right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.relative_to(ROOT)}")
    parser.add_argument("--only", default="", help="only the rows whose framework begins so")
    options = parser.parse_args()
    cases = [case for case in CASES if case.framework.startswith(options.only)]
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="gridchase-matrix-") as name:
        for k, case in enumerate(cases):
            result = measure(case, Path(name, str(k)))
            rows.append(row(case, result))
            wrong += not result.is_right
            print(f"{k + 1}/{len(cases)} {rows[-1]}", file=sys.stderr, flush=True)  # noqa: T201 — long work shows progress
    text = table(rows)
    print(text)  # noqa: T201 — that is what it is for
    if options.write and not options.only:
        TABLE.write_text(text, encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
