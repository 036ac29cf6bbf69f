"""The training side: `publish_iterations` around a loader, or a `Publisher` for loops that are not iterables.

What counts as an iteration is said in `passes.py`. Publishing never raises, blocks or prints: what is wrong is logged
once, to the logger `publishers`. A forked child does not publish for its parent.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from publishers.epochs import first_or_warn
from publishers.length import epochs_or_warn
from publishers.passes import PublishedIterable, PublishedSized, own_batch_size, published
from publishers.publisher import Publisher
from publishers.settings import Settings, resolve, resolve_or_warn

__all__ = ["PublishedIterable", "PublishedSized", "Publisher", "publish_iterations"]

T = TypeVar("T")
_Key = tuple[str, str, int]


def publish_iterations(
    iterable: Iterable[T],
    *,
    job: str | None = None,
    run: str | None = None,
    broker: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    gpus: Sequence[str | int] | None = None,
    batch_size: int | None = None,
    username: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
    root: str | None = None,
    flush_s: float = 0.25,
    heartbeat_s: float = 10.0,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    clock_s: Callable[[], float] = time.time,
    boot_id: str | None = None,
    epochs: int | None = None,
    total_iterations: int | None = None,
    first_epoch: int = 0,
) -> PublishedIterable[T]:
    """Return `iterable` (a data loader), publishing the iterations of each pass over it.

    One process has one publisher for each job, run and rank: wrapped anew in each epoch, a loader still is one run.

    Args:
        iterable: what the training loop runs over; asked for one batch at a time, like the bare one.
        job: the name under which this training recurs; else `GRIDCHASE_JOB`.
        run: the id of this recurrence, the same for all ranks; else `GRIDCHASE_RUN`, the launcher's, or random.
        broker: `mqtt://host:port` or `mqtts://…`; else `GRIDCHASE_BROKER`, else this machine.
        rank: this process among the `world_size`; else `RANK` or `SLURM_PROCID`, else 0.
        world_size: how many processes train together; else `WORLD_SIZE` or `SLURM_NTASKS`, else 1.
        gpus: the GPUs of this process, by UUID or NVML's index; else those of `CUDA_VISIBLE_DEVICES`; else, once the
            process has loaded CUDA, index `LOCAL_RANK` or 0.
        batch_size: samples an iteration; else the iterable's own `batch_size`.
        username: who we are to the broker; else as in its URL.
        password: and its proof; else as in the URL, else in the file `GRIDCHASE_PASSWORD_FILE`.
        ca_file: the authorities that a broker with TLS is checked against; else `GRIDCHASE_CA_FILE`, or the system's.
        root: the root of the topics; else `GRIDCHASE_ROOT`, else `gridchase/v1`.
        flush_s: how often iterations are sent [s].
        heartbeat_s: how often the status is sent [s].
        clock_ns: the monotonic clock of the iterations [ns].
        clock_s: the time of day [s, Unix, UTC].
        boot_id: within what `clock_ns` is comparable; else the machine's boot.
        epochs: how many passes the training makes over the iterable: with its length, how long the run is. What else is
            published in between (a validation) belongs to its epochs; pass it for one iterable.
        total_iterations: how long the run is, else: how many iterations this process publishes in all; those that an
            earlier process of a resumed run has published are not among them.
        first_epoch: the number of the first pass: 0, or how many epochs of a resumed run were trained before.
    """
    samples = batch_size if batch_size is not None else own_batch_size(iterable)
    settings = resolve_or_warn(
        lambda: resolve(
            job=job,
            run=run,
            broker=broker,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            batch_size=samples,
            username=username,
            password=password,
            ca_file=ca_file,
            root=root,
            flush_s=flush_s,
            heartbeat_s=heartbeat_s,
            boot_id=boot_id,
        )
    )
    publisher = _shared_publisher(settings, clock_ns, clock_s)
    if total_iterations is not None:
        publisher.length.say(total_iterations)
    publisher.recorder.go_on_at(first_or_warn(first_epoch, "first_epoch"))
    return published(iterable, publisher, epochs_or_warn(epochs))


_publishers: dict[_Key, Publisher] = {}
_lock = threading.Lock()


def _shared_publisher(
    settings: Settings | None, clock_ns: Callable[[], int], clock_s: Callable[[], float]
) -> Publisher:
    """Return this process's publisher for a job, run and rank; a new one where there is none that is open."""
    if settings is None:
        return Publisher.opened(None, clock_ns=clock_ns, clock_s=clock_s)
    key = (settings.job, "" if settings.run_is_random else settings.run, settings.rank)
    with _lock:
        publisher = _publishers.get(key)
        if publisher is None or publisher.closed:
            publisher = _publishers[key] = Publisher.opened(settings, clock_ns=clock_ns, clock_s=clock_s)
    if settings.batch_size is not None:
        publisher.set_batch_size(settings.batch_size)
    return publisher


def _forget_inherited() -> None:
    """Begin afresh in a forked child: the parent may have held the lock."""
    global _lock  # noqa: PLW0603 — a lock that another thread held at the fork can never be had
    _lock = threading.Lock()
    _publishers.clear()


os.register_at_fork(after_in_child=_forget_inherited)
