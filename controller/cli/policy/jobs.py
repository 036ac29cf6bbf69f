"""The verbs of `gridchase policy` that work on the database: list, show, export, import, delete."""

import asyncio
import difflib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.console import Console

from controller.cli.output import Terminal, note_stream, print_json, write_file
from controller.cli.policy.config import read_store_password
from controller.cli.policy.page import render_page
from controller.cli.policy.terminal import print_jobs, print_view
from controller.cli.policy.view import JobView, as_dict, ends_text, view_of
from controller.errors import ConfigError, ControllerError
from policies.service.app import store_url
from policies.service.config import PolicyConfig
from policies.service.errors import UnknownJobError
from policies.service.records import JobExport, JobKey, Trial
from policies.service.store.store import open_store
from policies.service.trials.jobs import JobRepository
from publishers.shared.files.lookup import NO_FILE, file_fault
from publishers.shared.files.private_dir import make_private_dir
from publishers.shared.printable import printable
from publishers.shared.process_identity import read_login_name

T = TypeVar("T")
PIPE_WIDTH: Final = 100
"""The width of tables without a terminal."""
N_TRIALS: Final = 500
"""The most runs on a page and in JSON."""
GIVE_AWAY: Final = "gridchase policy export /JOB | gridchase policy import - --user USER"
"""What makes a job of nobody's one of a user's."""
_PAGE: Final = 100
_SQLITE: Final = "sqlite:///"


class PolicyFileError(ControllerError):
    """A file could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLocation:
    """The database of a service: its configuration and state directory."""

    config: PolicyConfig
    state_dir: Path

    @property
    def url(self) -> str:
        """Return the URL of the database."""
        return store_url(self.config, self.state_dir)

    def fault(self, *, may_create: bool) -> str:
        """Return why a SQLite database cannot be opened, and what to do; "" where it can, and of another one."""
        file = self.url.removeprefix(_SQLITE)
        fault = file_fault(file) if self.url.startswith(_SQLITE) else ""
        if fault == NO_FILE:
            absent = f"{file}: there is no database: did the service run with this --config and --state-dir?"
            return "" if may_create else absent
        return fault and f"{file}: {fault}; run this as the user of the service"


def list_jobs(database: DatabaseLocation, *, as_json: bool) -> int:
    """Print every job."""
    jobs = asyncio.run(_with_repository(database, lambda repository: repository.jobs()))
    if as_json:
        print_json(jobs)
    elif jobs:
        print_jobs(jobs, _console())
        if not all(job.user for job in jobs):
            print(f"a job without a user is older than users, and no run learns from it: {GIVE_AWAY}")
    else:
        print("no job has asked for a batch size yet")
    return 0


def show(database: DatabaseLocation, job: str, *, as_json: bool, html: Path | None) -> int:
    """Print the estimates for a job's batch sizes, the next one and the last runs; or write the page."""
    view = asyncio.run(_with_repository(database, lambda repository: _view(repository, job)))
    if html is not None:
        _write(html, render_page(view).encode())
        print(html.resolve().as_uri(), file=note_stream(as_json=as_json))
    if as_json:
        print_json(as_dict(view))
    elif html is None:
        print_view(view, _console())
    return 0


def export(database: DatabaseLocation, job: str | None, *, out: Path | None) -> int:
    """Write jobs and all their runs as JSON."""

    async def read(repository: JobRepository) -> list[JobExport]:
        if job is None:
            return await repository.export()
        key = await find_job(repository, job)
        try:
            return await repository.export(key)
        except UnknownJobError as error:
            raise await _with_near_names(repository, key, error) from error

    exports = asyncio.run(_with_repository(database, read))
    document = msgspec.json.format(msgspec.json.encode(exports), indent=1) + b"\n"
    if out is None:
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
        return 0
    _write(out, document)
    print(f"{out}: {len(exports)} jobs, {sum(len(each.trials) for each in exports)} runs")
    return 0


def import_(database: DatabaseLocation, file: Path, *, user: str) -> int:
    """Import a file of `export`; jobs that have no user become those of `user`."""
    exports = read_exports(file)
    taken_in = _with_repository(
        database, lambda repository: repository.import_(exports, user=user, now_s=time.time()), may_create=True
    )
    counts = asyncio.run(taken_in)
    known = f"{counts.n_known_jobs} jobs and {counts.n_known_trials} runs existed already and are unchanged"
    print(f"{counts.n_jobs} jobs and {counts.n_trials} runs imported; {known}")
    return 0


def forget(database: DatabaseLocation, job: str, *, yes: bool) -> int:
    """Delete a job and all its runs; ask first without `yes`."""
    if not yes and not sys.stdin.isatty():
        raise ConfigError([f"forget {job}: there is no terminal to ask for confirmation: use --yes"])
    view = asyncio.run(_with_repository(database, lambda repository: _view(repository, job)))
    key = view.job.key
    question = f"Delete {printable(str(key))} and all that was learned from its runs ({ends_text(view)})? [y/N] "
    if not yes and input(question).strip().lower() not in {"y", "yes"}:
        print("nothing was deleted")
        return 0
    asyncio.run(_with_repository(database, lambda repository: repository.forget(key)))
    print(f"{printable(str(key))} was deleted")
    return 0


def read_exports(file: Path) -> list[JobExport]:
    """Return the content of an exported file.

    Raises:
        ConfigError: it cannot be read, or is no export.
    """
    try:
        document = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return msgspec.json.decode(document, type=list[JobExport])
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror}"]) from error
    except msgspec.DecodeError as error:
        raise ConfigError([f"{file}: {error}: must be what `gridchase policy export` wrote"]) from error


def _write(file: Path, content: bytes) -> None:
    try:
        write_file(file, content)
    except OSError as error:
        raise PolicyFileError(f"{file}: cannot be written: {error.strerror}") from error


def _console() -> Console:
    found = Terminal()
    return found if found.is_terminal else Terminal(width=PIPE_WIDTH)


@asynccontextmanager
async def opened_repository(database: DatabaseLocation, *, may_create: bool = False) -> AsyncIterator[JobRepository]:
    """Open the database and its repository.

    Raises:
        ControllerError: there is no database yet.
    """
    password = read_store_password(database.config.store)
    if fault := database.fault(may_create=may_create):
        raise ControllerError(fault)
    if may_create and not database.config.store.url:
        make_private_dir(database.state_dir)
    async with open_store(database.url, password=password, timeout_s=database.config.store.timeout_s) as store:
        yield JobRepository(store, database.config.learning)


async def _with_repository(
    database: DatabaseLocation, work: Callable[[JobRepository], Awaitable[T]], *, may_create: bool = False
) -> T:
    async with opened_repository(database, may_create=may_create) as repository:
        return await work(repository)


async def find_job(repository: JobRepository, text: str) -> JobKey:
    """Return the job that is meant: `user/job`, or `job` alone, then the caller's own, else the only one of this name.

    Raises:
        ConfigError: several users have such a job.
    """
    user, slash, name = text.rpartition("/")
    if slash:
        return JobKey(user, name)
    found, own = await repository.with_name(name), JobKey(read_login_name(), name)
    if own in found or not found:
        return own
    if len(found) > 1:
        raise ConfigError([f"{name}: say whose: {' or '.join(map(str, found))}"])
    return found[0]


async def _view(repository: JobRepository, text: str) -> JobView:
    key = await find_job(repository, text)
    try:
        job, posterior = await repository.job(key), await repository.posterior(key)
    except UnknownJobError as error:
        raise await _with_near_names(repository, key, error) from error
    trials: list[Trial] = []
    while page := await repository.trials(key, limit=_PAGE, before=trials[-1].number if trials else None):
        trials += page
        if len(page) < _PAGE or len(trials) >= N_TRIALS:
            break
    return view_of(job, posterior, trials)


async def _with_near_names(repository: JobRepository, key: JobKey, error: UnknownJobError) -> UnknownJobError:
    keys = [job.key for job in await repository.jobs()]
    names = difflib.get_close_matches(key.job, {known.job for known in keys}, n=3, cutoff=0.5)
    near = [str(known) for known in sorted(keys, key=lambda known: known.user != key.user) if known.job in names][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "`gridchase policy jobs` lists the known jobs"
    return UnknownJobError(f"{error}; {hint}")
