"""What a framework's callback itself costs a step: nanoseconds, beside tqdm in the same run.

`python -m tests.benchmarks.frameworks` prints the table; `--write` also writes it to `frameworks.md`. It needs the
environment of `make test-frameworks`. Only the callback's own body is measured, called as its framework calls it; the
framework's dispatch is paid for any callback. Variants are measured in turns; each turn takes the callback through as
many steps as any other.
"""

import argparse
import datetime as dt
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TextIO

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported: its own default is TensorFlow

import keras
import lightning.pytorch
import transformers
from tqdm import tqdm

from gridchase import KerasCallback, LightningCallback, TransformersCallback
from tests.benchmarks.publisher import mosquitto

N_STEPS = 50_000
N_TURNS = 41
TABLE = Path(__file__).with_suffix(".md")
EMPTY, TQDM, UPDATE, NOTHING = "empty loop", "`tqdm(iterable)`", "`bar.update(1)` of tqdm", ", doing nothing"
Loop = Callable[[], None]


class Callbacks(NamedTuple):
    """The loops of what a framework calls for each step: of our callback, and of its own, which does nothing."""

    ours: Loop
    empty: Loop


def transformers_steps(url: str) -> Callbacks:
    """Return the calls of a `Trainer`."""
    callback = TransformersCallback(job="benchmark", run="transformers", broker=url)
    args = SimpleNamespace(train_batch_size=8, gradient_accumulation_steps=1)
    state = SimpleNamespace(train_batch_size=8, max_steps=0, global_step=0, epoch=0.0)
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    callback.on_train_begin(args, state, control)
    check_is_open(callback)
    more: dict[str, Any] = dict.fromkeys(
        ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
    )

    def loop(callback: Any) -> None:  # noqa: ANN401
        begin, end = callback.on_step_begin, callback.on_step_end
        for _ in range(N_STEPS):
            begin(args, state, control, **more)
            end(args, state, control, **more)

    return Callbacks(lambda: loop(callback), lambda: loop(transformers.TrainerCallback()))


def lightning_steps(url: str) -> Callbacks:
    """Return the calls of a Lightning `Trainer`."""
    callback = LightningCallback(job="benchmark", run="lightning", broker=url)
    counts = SimpleNamespace(completed=0)
    step = SimpleNamespace(total=counts)
    progress = SimpleNamespace(optimizer=SimpleNamespace(step=step))
    trainer = SimpleNamespace(
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(automatic_optimization=SimpleNamespace(optim_progress=progress))
        ),
        lightning_module=SimpleNamespace(automatic_optimization=True),
        train_dataloader=None,
        estimated_stepping_batches=-1,
        global_step=0,
        current_epoch=0,
        log_every_n_steps=50,
        loggers=[],
    )
    callback.on_train_start(trainer, None)
    check_is_open(callback)

    def loop(callback: Any) -> None:  # noqa: ANN401
        begin, end = callback.on_train_batch_start, callback.on_train_batch_end
        for k in range(N_STEPS):
            begin(trainer, None, None, k)
            counts.completed += 1
            end(trainer, None, None, None, k)

    return Callbacks(lambda: loop(callback), lambda: loop(lightning.pytorch.Callback()))


def keras_steps(url: str) -> Callbacks:
    """Return the calls of `fit`."""
    callback = KerasCallback(job="benchmark", run="keras", broker=url)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    callback.set_params({"epochs": 1_000_000, "steps": None})
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    check_is_open(callback)

    def loop(callback: Any) -> None:  # noqa: ANN401
        callback.on_epoch_end(0)
        callback.on_epoch_begin(0)
        begin, end = callback.on_train_batch_begin, callback.on_train_batch_end
        for k in range(N_STEPS):
            begin(k, logs=None)
            end(k, logs=None)

    return Callbacks(lambda: loop(callback), lambda: loop(keras.callbacks.Callback()))


def check_is_open(callback: Any) -> None:  # noqa: ANN401 — of any framework
    """End the benchmark where a callback does not publish: it would do nothing."""
    if not callback._fit.is_open:
        sys.exit(f"not a measurement: {type(callback).__name__} does not publish")


def tqdm_steps(nowhere: TextIO) -> Loop:
    """Return a loop that updates a bar for each step."""
    bar = tqdm(file=nowhere)

    def loop() -> None:
        for _ in range(N_STEPS):
            bar.update(1)

    return loop


def tqdm_iterations(nowhere: TextIO) -> Loop:
    """Return a loop through a bar."""

    def loop() -> None:
        for _ in tqdm(range(N_STEPS), file=nowhere):
            pass

    return loop


def empty() -> None:
    """Do nothing, as often."""
    for _ in range(N_STEPS):
        pass


def measure(variants: dict[str, Loop]) -> dict[str, list[float]]:
    """Return the time of a step in each turn [ns], by variant."""
    times_ns: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(N_TURNS):
        for name, loop in variants.items():
            begin_ns = time.perf_counter_ns()
            loop()
            times_ns[name].append((time.perf_counter_ns() - begin_ns) / N_STEPS)
    return times_ns


def table(times_ns: dict[str, list[float]]) -> str:
    """Return the table, in Markdown."""
    best_ns = {name: min(values) for name, values in times_ns.items()}
    tqdm_ns, update_ns = (best_ns[name] - best_ns[EMPTY] for name in (TQDM, UPDATE))
    lines = [
        "# What a framework's callback costs a step",
        "",
        f"Nanoseconds a step, the best of {N_TURNS} interleaved turns of {N_STEPS:,} steps each. “Own body”: how much",
        "longer than the framework's own callback, which does nothing and is called alike (theirs is dearer to call",
        "where it names its arguments); of tqdm, how much longer than an empty loop.",
        "",
        "| loop | best | own body | of `tqdm(iterable)` | of `bar.update(1)` |",
        "|---|---|---|---|---|",
    ]
    for name, nanoseconds in best_ns.items():
        if name.endswith(NOTHING):
            continue
        own_ns = nanoseconds - best_ns.get(name + NOTHING, best_ns[EMPTY])
        lines.append(
            f"| {name} | {nanoseconds:.0f} | {own_ns:.0f} | {own_ns / tqdm_ns:.2f} | {own_ns / update_ns:.2f} |"
        )
    packages = ("transformers", "lightning", "keras", "tqdm")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    system = f"{platform.system()}, {platform.python_implementation()} {platform.python_version()}"
    today = dt.datetime.now(tz=dt.UTC).date()
    return "\n".join([*lines, "", f"Measured on {today} on {os.cpu_count()} cores, {system}, {versions}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        url = stack.enter_context(mosquitto())
        variants = {EMPTY: empty, TQDM: tqdm_iterations(nowhere), UPDATE: tqdm_steps(nowhere)}
        for name, callbacks in (
            ("`TransformersCallback`", transformers_steps(url)),
            ("`LightningCallback`", lightning_steps(url)),
            ("`KerasCallback`", keras_steps(url)),
        ):
            variants |= {name: callbacks.ours, name + NOTHING: callbacks.empty}
        text = table(measure(variants))
    print(text)
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
