"""`gridchase restore`: restore the limits of a killed controller, by hand or from systemd's ExecStopPost."""

import argparse
import asyncio
import sys
from pathlib import Path

from controller.cli.verb import add_configuration
from controller.cli.wiring import backend_of
from controller.clock import Clock, SystemClock
from controller.config import Config, load_for_restore
from controller.gpu.journal import Journal
from controller.gpu.node_lock import NodeLock
from controller.gpu.read_back import restore_prior_limit
from controller.ports import Gpu
from controller.stop_signals import stops_deferred
from publishers.shared.printable import printable

MAX_TRIES = 3
RETRY_S = 1.0


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb; a configuration that is wrong elsewhere must not keep a limit in place."""
    add_configuration(verb)

    def do(options: argparse.Namespace) -> int:
        config, faults = load_for_restore(options.config, options.set)
        for fault in faults:
            print(f"gridchase: {printable(fault)} (using the default)", file=sys.stderr)
        with stops_deferred():
            return restore(config)

    verb.set_defaults(outlives_terminal=True, do=do)


def restore(config: Config) -> int:
    """Restore every prior limit in the journal; return 0 if each is seen back or another program has set it.

    Raises:
        JournalError: the journal cannot be read; nothing was touched.
        NodeLockedError: a controller is running, and restores its limits itself.
        BackendError: there are limits to restore, but the GPUs are not available.
    """
    state_dir = Path(config.node.state_dir)
    if not Journal.read(state_dir).entries:
        print(f"{state_dir}: the journal is empty; nothing to restore")
        return 0
    with NodeLock(state_dir) as lock:
        return asyncio.run(_restore(config, Journal.open(state_dir), lock))


async def _restore(config: Config, journal: Journal, lock: NodeLock) -> int:
    clock = SystemClock()
    backend = backend_of(config, clock)
    gpus = [gpu for gpu in await backend.open() if gpu.uuid in journal.entries]
    absent = journal.entries.keys() - {gpu.uuid for gpu in gpus}
    try:
        if config.gpu.backend == "nvml":
            lock.lock_gpus(gpu.uuid for gpu in gpus)
        async with asyncio.TaskGroup() as tasks:
            for gpu in gpus:
                tasks.create_task(_restore_one(gpu, journal, clock), name=f"restore[{gpu.uuid}]")
    finally:
        await backend.close()
    for uuid in absent:
        print(f"{printable(uuid)}: failed: not present on this node; its journal entry is kept")
    return int(bool(journal.entries))


async def _restore_one(gpu: Gpu, journal: Journal, clock: Clock) -> None:
    """Restore the limit of a GPU, tried a few times, and print what became of it."""
    for n_left in reversed(range(MAX_TRIES)):
        result = await restore_prior_limit(gpu, journal, clock)
        if result is not None and (result.code != "failed" or not n_left):
            print(printable(f"{gpu.uuid}: {result.code}: {result.detail}"))
            return
        await asyncio.sleep(RETRY_S)
