"""The one line: `publish_iterations` around a data loader, and `publisher_of` to find its publisher."""

import time
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from publishers.training.coerce import warn_once
from publishers.training.iterations.data_loader import batch_size_of
from publishers.training.iterations.progress import epochs_or_warn, first_epoch_or_warn
from publishers.training.iterations.published_loader import published, publisher_behind
from publishers.training.publisher import PUBLISHERS, Publisher, off
from publishers.training.settings import PublisherOptions, resolve_or_warn

I = TypeVar("I")  # noqa: E741 — an iterable of any kind


def publish_iterations(
    iterable: I,
    *,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    clock_s: Callable[[], float] = time.time,
    epochs: int | None = None,
    total_iterations: int | None = None,
    first_epoch: int = 0,
    work: Callable[[Any], float] | None = None,
    total_work: float | None = None,
    **options: Unpack[PublisherOptions],
) -> I:
    """Return `iterable` (a data loader), publishing the iterations of each pass over it.

    It is the same object, which publishes when it is iterated over; a generator becomes a generator, and what cannot
    change (a list, an array) a sequence like it. `publisher_of(iterable)` is its publisher: to pause, to stop early.
    Each step of a PyTorch optimizer is an iteration, whatever becomes of the loader; a pass without one is a pause.
    Where no steps are seen, the batches count.

    One process has one publisher for each job, run and rank: wrapped again in each epoch, a loader still is one run.
    Another training in the same process is another run, unless `run` is given: `run/next_run.py` says where one begins.

    Args:
        iterable: what the training loop runs over; asked for one batch at a time, like the bare one.
        clock_ns: the monotonic clock of the iterations [ns].
        clock_s: the time of day [s, Unix, UTC].
        epochs: how many passes the training makes over the iterable: with its length, how long the run is. What else is
            published in between (a validation) belongs to its epochs; pass it for one iterable.
        total_iterations: how long the run is, else: how many iterations this process publishes in all; those that an
            earlier process of a resumed run has published are not among them.
        first_epoch: the number of the first pass: 0, or how many epochs of a resumed run were trained before.
        work: returns how much work a batch is, where that varies, as with sequences of unequal length:
            `lambda batch: batch["input_ids"].numel()`. An iteration's work is that of its batches, and the controller
            measures by work, so that rates scatter less. What is returned must be a number above 0 that the host
            knows; else, and where it raises, the iteration counts as one of mean work.
        total_work: how much work this process does in all, where that is known better than the iterations.
        options: who publishes, and where to; each has a default:

            - `job`: the name under which this training recurs; else `GRIDCHASE_JOB`.
            - `run`: the id of this recurrence, the same for all ranks; else `GRIDCHASE_RUN`, else found by the ranks.
            - `broker`: `mqtt://host:port` or `mqtts://…`; else `GRIDCHASE_BROKER`, else this machine.
            - `rank`: this process among the `world_size`; else that in its process group, else the launcher's, else 0.
            - `world_size`: how many processes train together; else as `rank`, else 1.
            - `gpus`: the GPUs of this process, by UUID, NVML's index or device of CUDA (`cuda:0`); else those of
              `CUDA_VISIBLE_DEVICES`; else those on which the driver shows the controller that this process computes.
            - `batch_size`: samples an iteration; else the iterable's own `batch_size`.
            - `username`: our user name at the broker; else that in its URL. The job is this user's; without one, of the
              login name.
            - `password`: its password; else that in the URL, else in the file `GRIDCHASE_PASSWORD_FILE`.
            - `ca_file`: the authorities that a broker with TLS is checked against; else `GRIDCHASE_CA_FILE`, or the
              system's.
            - `root`: the root of the topics; else `GRIDCHASE_ROOT`, else `gridchase/v1`.
            - `flush_s`: how often iterations are sent [s]; 0.25.
            - `heartbeat_s`: how often the status is sent [s]; 10.
            - `emissions_file`: a CSV file in the form of CodeCarbon's, to which rank 0 appends a row at the end; else
              `GRIDCHASE_EMISSIONS_FILE`, else none.
            - `pausable`, `max_pause_s`: whether, and how long [s], the controller may pause it; False, 300.
            - `early_stop`: whether its loops end where `should_stop`, on all ranks after the same iteration; False.
            - `work_unit`: what work is counted in, a word like `tokens`; None.
            - `boot_id`: within what `clock_ns` is comparable; else the machine's boot.
    """
    if options.get("batch_size") is None:
        options["batch_size"] = batch_size_of(iterable)
    publisher = Publisher.find_or_open(
        resolve_or_warn(options, caller="publish_iterations"),
        clock_ns,
        clock_s,
        announces=(epochs, total_iterations, total_work) != (None, None, None),
    )
    if total_work is not None:
        publisher.progress.set_total_work(total_work)
    if total_iterations is not None:
        publisher.progress.set_total(total_iterations)
    publisher.recorder.resume_at(first_epoch_or_warn(first_epoch, "first_epoch"))
    return published(iterable, publisher, epochs_or_warn(epochs), work)


def publisher_of(iterable: object) -> Publisher:
    """Return the publisher of what `publish_iterations` has returned; never raises.

    For another iterable, such as a loader that a framework has made anew from it, it is the one that this process has;
    where it has none or several, one that publishes nothing, with a warning.
    """
    found = publisher_behind(iterable)
    if isinstance(found, Publisher):
        return found
    publishers = [publisher for publisher in list(PUBLISHERS.by_key.values()) if not publisher.closed]
    if len(publishers) == 1:
        return publishers[0]
    warn_once(
        f"publisher_of finds no publisher of a {type(iterable).__name__}: "
        f"pass what publish_iterations has returned, since this process has {len(publishers)} publishers"
    )
    return off()
