"""`gridchase restore`: restore the limits of a killed controller, by hand or from systemd's ExecStopPost."""

import argparse
import asyncio
import sys
from pathlib import Path

from controller.cli.verb import add_configuration
from controller.cli.wiring import backend_of
from controller.clock import SystemClock
from controller.config import Config, load_for_restore
from controller.gpu.journal import Journal, restore_prior_limit
from controller.gpu.node_lock import NodeLock


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb; a configuration that is wrong elsewhere must not keep a limit in place."""
    add_configuration(verb)

    def do(options: argparse.Namespace) -> int:
        config, faults = load_for_restore(options.config, options.set)
        for fault in faults:
            print(f"gridchase: {fault} (using the default)", file=sys.stderr)
        return restore(config)

    verb.set_defaults(do=do)


def restore(config: Config) -> int:
    """Restore every prior limit in the journal; return 0 if each is restored or another program has set it.

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
    backend = backend_of(config, SystemClock())
    gpus = await backend.open()
    failed = False
    try:
        if config.gpu.backend == "nvml":
            lock.lock_gpus(gpu.uuid for gpu in gpus if gpu.uuid in journal.entries)
        for gpu in gpus:
            result = await restore_prior_limit(gpu, journal)
            if result is not None:
                print(f"{gpu.uuid}: {result.code}: {result.detail}")
                failed = failed or result.code == "failed"
    finally:
        await backend.close()
    for uuid in journal.entries.keys() - {gpu.uuid for gpu in gpus}:
        print(f"{uuid}: failed: not present on this node; its journal entry is kept")
        failed = True
    return int(failed)
