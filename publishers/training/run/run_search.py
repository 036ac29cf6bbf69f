"""Finds out which run this process trains in, and which of its ranks it is, without any configuration.

All ranks of a run need one id that no other run has, and launchers differ in what they say. In this order:

| id | known |
|---|---|
| the argument `run`, else `GRIDCHASE_RUN` | at once |
| the UUID that torchrun has made | at once |
| what the ranks agree on in the store of torchrun's agent, where its id was chosen by the user or is none | at once |
| what they agree on in the store of their process group | once it exists |
| the id of a launch by srun or Open MPI's mpirun; the parent process where all ranks are its children | at once |
| a random one, where there is one rank | at once |

Rank and world size are those of the process group of `torch.distributed`, wherever there is one: some launchers set no
variables, and some set wrong ones. So where a group may still come (torch is imported, and torchrun has not started
this process) nothing is known before the training begins. All of this is the business of the worker's thread: the host
of a store may be gone, and a call then waits.

One process may train several times: its first run has the id that is found, its second the same with `-2`.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from publishers.messages.topics import is_name
from publishers.training.coerce import to_int
from publishers.training.run.launchers import (
    LAUNCH,
    is_child,
    launch_id,
    torchrun_id,
    torchrun_uuid,
    world_size_of,
)
from publishers.training.run.process_group import ProcessGroup, Store, default_process_group
from publishers.training.settings import Settings, SettingsError, SettingsReader

GROUP_PATIENCE_S: Final = 10.0
"""A process that was launched as one of several, and has begun to train, waits so long for its process group."""
STORE_TIMEOUT_S: Final = 5.0
_MAX_TRIES: Final = 3
"""So often the store of torchrun's agent is tried."""
_MAX_NAME: Final = 64
_TOKEN_BYTES: Final = 6
_LOGGER: Final = logging.getLogger("publishers")

_n_runs: dict[str, int] = {}
"""How many runs of each job this process has had so far."""
_ending: "list[RunSearch]" = []
"""Of runs that have ended before they were known: the runs that follow are numbered after them, on every rank."""


class RunSearch:
    """The search for the identity of one run; one thread asks until it is found.

    Args:
        settings: as they were known when the publisher was made.
        environ: the environment, which launchers change before the training begins.
        clock_s: a monotonic clock [s].
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str] = os.environ,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._given = settings.given
        self._environ = environ
        self._clock_s = clock_s
        self._due_s: float | None = None
        self._n_tries = 0
        self._is_over = False
        self._random = os.urandom(_TOKEN_BYTES).hex()
        self._is_child = is_child()

    def find(self, *, is_due: bool, is_last: bool = False) -> Settings | None:
        """Return the settings with run, rank, world size and GPUs as they are; None where they are not known yet.

        Args:
            is_due: whether the training has begun, or cannot go on without: what is missing now will hardly come.
            is_last: whether it has ended, so that nothing is waited for any more.

        Raises:
            SettingsError: there are several ranks, and nothing that they could agree on; or a variable is wrong.
        """
        if self._is_after_another():
            return None
        group = default_process_group()
        if group is None and self._may_get_group(is_due=is_due, is_last=is_last):
            return None
        reader = SettingsReader(self._environ if group is not None or not self._is_alone() else {})
        rank, world_size = reader.rank_of(self._given.rank, self._given.world_size, group)
        gpus = SettingsReader(self._environ).gpus(self._given.gpus, world_size=world_size)
        if reader.faults:
            raise SettingsError(reader.faults)
        run = self._run(group, world_size)
        if run is None:
            return None
        self.give_up()
        is_random = run == self._random
        return replace(
            self._settings,
            run=run,
            run_is_random=is_random,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            launch=self._launch() if is_random else None,
        )

    def end(self) -> None:
        """Take note that the run ends; safe anywhere, also in a garbage collection."""
        if not self._is_over:
            _ending.append(self)

    def give_up(self) -> None:
        """Ask no more: it is found, or nothing of it is published."""
        self._is_over = True
        if self in _ending:
            _ending.remove(self)

    def _is_after_another(self) -> bool:
        job, before = self._settings.job, list(_ending)
        before = before[: before.index(self)] if self in before else before
        return any(one._settings.job == job for one in before)  # noqa: SLF001 — the same class

    def _may_get_group(self, *, is_due: bool, is_last: bool) -> bool:
        """Return whether this process may still get a process group that says more than is known now."""
        given = self._given
        if given.rank is not None and given.world_size is not None and (given.run or given.world_size == 1):
            return False
        is_of_torchrun = "TORCHELASTIC_RUN_ID" in self._environ and not self._is_child
        if "torch" not in sys.modules or is_of_torchrun:
            return False
        if is_last or not is_due:
            return not is_last
        self._due_s = self._clock_s() if self._due_s is None else self._due_s
        world_size = given.world_size or world_size_of(self._environ)
        is_one_of_several = world_size > 1 and not self._is_alone()
        return is_one_of_several and self._clock_s() - self._due_s < GROUP_PATIENCE_S

    def _is_alone(self) -> bool:
        """Return whether the variables of launchers mean another process, which has started this one."""
        return self._is_child and not self._given.run and not self._environ.get("GRIDCHASE_RUN")

    def _run(self, group: ProcessGroup | None, world_size: int) -> str | None:
        """Return the run's id; None where it is to be asked for again."""
        job = self._settings.job
        named = self._given.run or self._name()
        if named is not None:
            return named if named == self._given.run else _numbered(named, _take_number(job))
        if self._has_agent and self._n_tries < _MAX_TRIES:
            run = self._agreed_with_agent(f"gridchase/{self._settings.user}/{job}/{_n_runs.get(job, 0)}")
            if run is not None:
                _take_number(job)
            return run
        if world_size == 1:
            return self._random
        run = self._agreed_in_group(group) if group is not None else None
        return run or _numbered(self._launch_id(world_size), _take_number(job))

    def _name(self) -> str | None:
        """Return the id that the environment gives the run; in a child of a training, torchrun's is its parent's."""
        return self._environ.get("GRIDCHASE_RUN") or (None if self._is_child else torchrun_uuid(self._environ))

    @property
    def _has_agent(self) -> bool:
        """Return whether this process can ask the store of torchrun's agent."""
        is_told = self._environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return is_told and not self._is_child and "torch.distributed" in sys.modules

    def _launch(self) -> str | None:
        """Return the id of the `gridchase run` that this process is below; None: it is below none."""
        launch = self._environ.get(LAUNCH, "")
        return launch if is_name(launch) else None

    def _launch_id(self, world_size: int) -> str:
        """Return the id of the launch that the environment tells.

        Raises:
            SettingsError: there is none.
        """
        run = (launch_id(self._environ) or self._name_of_rendezvous()) if not self._is_child else None
        if run is None:
            fault = (
                f"run is missing, and world_size = {world_size} ranks must share one: "
                "set GRIDCHASE_RUN to the same new id for all of them"
            )
            raise SettingsError([fault])
        return run

    def _agreed_with_agent(self, key: str) -> str | None:
        """Return what the ranks agree on in the store of torchrun's agent, which outlives them; None where it fails."""
        host, port = self._environ.get("MASTER_ADDR"), to_int(self._environ.get("MASTER_PORT"))
        distributed: Any = sys.modules["torch.distributed"]
        self._n_tries += 1
        try:
            store = distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S))
            return _agree(store, key)
        except Exception as error:  # noqa: BLE001 — whatever it is, there are other ways
            _LOGGER.debug("the store of torchrun's agent cannot be asked: %s", error)
            return None

    def _agreed_in_group(self, group: ProcessGroup) -> str | None:
        """Return what the ranks agree on in the store of their process group; None where it fails."""
        user, job = self._settings.user, self._settings.job
        try:
            number = group.store.add(f"gridchase/{user}/{job}/of/{group.rank}", 1)
            return _agree(group.store, f"gridchase/{user}/{job}/{number}")
        except Exception as error:  # noqa: BLE001 — whatever it is, there are other ways
            _LOGGER.debug("the store of the process group cannot be asked: %s", error)
            return None

    def _name_of_rendezvous(self) -> str | None:
        """Return the name that the user has given torchrun's rendezvous, where it may name a run."""
        run = torchrun_id(self._environ)
        return run if run is not None and is_name(run) else None


def n_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks train together, as far as is known now."""
    group = default_process_group()
    return group.world_size if group is not None else world_size_of(environ)


def _agree(store: Store, key: str) -> str | None:
    """Return the id that the first rank has proposed."""
    run = store.compare_set(key, "", os.urandom(_TOKEN_BYTES).hex()).decode()
    return run if is_name(run) else None


def _take_number(job: str) -> int:
    """Return which run of a job this is in this process, counted from 0."""
    number = _n_runs.get(job, 0)
    _n_runs[job] = number + 1
    return number


def _numbered(run: str, number: int) -> str:
    """Return the id of a run after others in one process; a name that is too long loses its end."""
    suffix = f"-{number + 1}" if number else ""
    return run[: _MAX_NAME - len(suffix)] + suffix


def _reset_in_child() -> None:
    """Begin afresh in a forked child: its runs are its own."""
    _n_runs.clear()
    _ending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
