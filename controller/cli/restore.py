"""`gridchase restore`: restore the limits of a killed controller, by hand or from systemd's ExecStopPost.

With `--forget` it strikes the journal entry of a board that will not come back; nothing else gives up a limit.
"""

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from controller.cli.configuration import add_configuration
from controller.cli.wiring import backend_of, restore_command
from controller.config import Config, is_state_dir_known, load_for_restore
from controller.errors import BackendError, ConfigError, JournalError, NodeLockedError
from controller.gpu.intake import absence
from controller.gpu.journal.storage import Journal
from controller.gpu.node_lock import NodeLock
from controller.gpu.read_back import restore_all, unexplained_limits
from controller.runtime.clock import SystemClock
from controller.runtime.stop_signals import stops_deferred
from publishers.shared.printable import printable

_NOTHING = "nothing to restore"
_BY_HAND = "see `nvidia-smi -q -d POWER`, and set them by hand where needed (`nvidia-smi -i … -pl …`)"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb; a configuration that is wrong elsewhere must not keep a limit in place."""
    add_configuration(verb)
    verb.add_argument(
        "--forget",
        metavar="UUID",
        help="restore nothing, but strike the journal entry of a board that was taken out of the node for good",
    )

    def do(options: argparse.Namespace) -> int:
        config, faults = load_for_restore(options.config, options.set)
        for fault in faults:
            print(f"gridchase: {printable(fault)} (using the default)", file=sys.stderr)
        with stops_deferred():
            code = restore(config) if options.forget is None else forget(config, options.forget)
        if is_state_dir_known(options.config, options.set, faults):
            return code
        print(
            f"gridchase: {options.config} may name another node.state_dir than {config.node.state_dir}: correct the"
            " file, or run `gridchase restore --set node.state_dir=…`",
            file=sys.stderr,
        )
        return code or 2

    verb.set_defaults(outlives_terminal=True, defers_stops=True, do=do)


def restore(config: Config) -> int:
    """Restore every prior limit in the journal; return 0 if each is confirmed or another program has set it, else 1.

    Where there is no journal, a limit below the default may be one that was left behind: that is 1, too.

    It needs to read the state directory only: a disk that is full, read-only or hangs delays no limit.

    Raises:
        JournalError: the journal cannot be read, and nothing was touched; or one of its entries cannot.
        NodeLockedError: a controller is running, and restores its limits itself.
        BackendError: there are limits to restore, but the GPUs are not available.
    """
    state_dir = Path(config.node.state_dir)
    journal = Journal.read(state_dir)
    if journal.is_missing and journal.entries:
        print(f"gridchase: {journal.path} is gone; its copy {journal.copy_path} counts", file=sys.stderr)
    if not journal.entries and not journal.damage:
        if journal.is_missing and (found := asyncio.run(_unexplained_limits(config))):
            print("\n".join(printable(fault) for fault in found))
            print(f"{state_dir}: there is no journal to tell whether these were left behind; {_BY_HAND}")
            return 1
        print(f"{state_dir}: {'there is no journal' if journal.is_missing else 'the journal is empty'}; {_NOTHING}")
        if journal.copy_path and journal.copy_path.exists():
            _remove_stale_copy(state_dir)
        return 0
    with NodeLock(state_dir, restores=True) as lock:
        return asyncio.run(_restore(config, Journal.read(state_dir), lock))


def _remove_stale_copy(state_dir: Path) -> None:
    """Remove a copy that is older than the empty journal: it keeps its GPUs from controllers of other directories."""
    with suppress(NodeLockedError), NodeLock(state_dir, restores=True) as lock:  # who runs replaces it
        if not lock.fault:
            Journal.read(state_dir).remove_stale_copy()


def forget(config: Config, gpu_uuid: str) -> int:
    """Strike the journal entry of a board that is gone for good, from the journal and its copy; return 0.

    Raises:
        ConfigError: the journal does not name it, or it may still be there: then it is to be restored. A simulation
            cannot tell.
        JournalError: the journal cannot be locked, read or written.
        NodeLockedError: a controller is running, or holds this GPU.
        BackendError: the driver cannot tell which GPUs there are.
    """
    if config.gpu.backend != "nvml":
        fault = f"gpu.backend is {config.gpu.backend}, which lists no board; set it to nvml"
        raise ConfigError([f"--forget {gpu_uuid}: {fault}"])
    state_dir = Path(config.node.state_dir)
    with NodeLock(state_dir, restores=True) as lock:
        return asyncio.run(_forget(config, Journal.read(state_dir), lock, gpu_uuid))


async def _forget(config: Config, journal: Journal, lock: NodeLock, gpu_uuid: str) -> int:
    if journal.damage:
        raise JournalError("\n".join(journal.damage))
    if (entry := journal.entries.get(gpu_uuid)) is None:
        named = ", ".join(sorted(journal.entries)) or "none"
        raise ConfigError([f"--forget {gpu_uuid}: must be a GPU that the journal names; there is {named}"])
    backend = backend_of(config, SystemClock())
    try:
        is_listed = gpu_uuid in {gpu.uuid for gpu in await backend.open()}
        faults = list(backend.faults)
    finally:
        await backend.close()
    if is_listed:
        raise ConfigError([f"--forget {gpu_uuid}: the driver lists this GPU; run `{restore_command(config)}`"])
    if faults:
        raise ConfigError([f"--forget {gpu_uuid}: it may be the GPU that does not answer: {faults[0]}"])
    if held := lock.lock_gpus([gpu_uuid]):
        raise NodeLockedError(held[gpu_uuid])
    if lock.fault:
        raise JournalError(lock.fault)
    try:
        await journal.forget(gpu_uuid)
    except JournalError:
        await journal.note(gpu_uuid, entry)  # the copy, which is written first, has it no more
        raise
    limits = f"{entry.newest_power_limit_w:g} W, instead of its prior limit {entry.prior_power_limit_w:g} W"
    print(printable(f"{gpu_uuid}: forgotten: it was left at {limits}"))
    return 0


async def _unexplained_limits(config: Config) -> list[str]:
    backend = backend_of(config, SystemClock())
    try:
        return await unexplained_limits(await backend.open())
    except BackendError:  # then nobody can have set a limit, or nobody can tell
        return []
    finally:
        await backend.close()


async def _restore(config: Config, journal: Journal, lock: NodeLock) -> int:
    clock = SystemClock()
    backend = backend_of(config, clock)
    gpus = [gpu for gpu in await backend.open() if gpu.uuid in journal.entries]
    is_real = config.gpu.backend == "nvml"
    away = journal.entries.keys() - {gpu.uuid for gpu in gpus}
    command = restore_command(config)
    absent = {uuid: absence(uuid, backend.faults, is_real=is_real, restore_command=command) for uuid in away}
    try:
        held = lock.lock_gpus(gpu.uuid for gpu in gpus) if is_real else {}
        gpus = [gpu for gpu in gpus if gpu.uuid not in held]
        results = await restore_all(gpus, journal, clock, restore_command=command)
    finally:
        await backend.close()
    for uuid, result in results.items():
        print(printable(f"{uuid}: {result.code}: {result.detail}"))
    for uuid, (why, remedy) in sorted(absent.items()):
        print(printable(f"{uuid}: failed: {why}; its journal entry is kept; {remedy}"))
    if lock.fault:
        print(f"gridchase: {lock.fault}", file=sys.stderr)
    has_failed = bool(absent) or any(result.code == "failed" for result in results.values())
    if has_failed and (faults := [*journal.damage, *held.values()]):
        print("\n".join(f"gridchase: {fault}" for fault in faults), file=sys.stderr)
    elif journal.damage:
        raise JournalError("\n".join([*journal.damage, *held.values()]))
    elif held:
        raise NodeLockedError("\n".join(held.values()))
    return int(has_failed)
