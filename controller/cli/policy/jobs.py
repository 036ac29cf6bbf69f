"""What has been learned, in the database itself: the verbs of `gridchase policy` beside serving."""

import asyncio
import difflib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.console import Console

from controller.cli.policy.config import read_store_password
from controller.cli.policy.terminal import print_jobs, print_view
from controller.cli.policy.view import JobView, as_dict, ends_text, view_of
from controller.errors import ConfigError, ControllerError
from policies.service.app import store_url
from policies.service.config import PolicyConfig
from policies.service.errors import UnknownJobError
from policies.service.store.store import opened_store
from policies.service.trials.records import JobExport, Trial
from policies.service.trials.repository import TrialRepository

T = TypeVar("T")
PIPE_WIDTH: Final = 100
"""Tables are this wide where no terminal says otherwise."""
N_TRIALS: Final = 500
"""So many runs are on a page and in JSON."""
_PAGE: Final = 100
_SQLITE: Final = "sqlite:///"


class PolicyFileError(ControllerError):
    """A file could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLocation:
    """Which database: the configuration of the service, and its state directory."""

    config: PolicyConfig
    state_dir: Path

    @property
    def url(self) -> str:
        """Return the URL of the database."""
        return store_url(self.config, self.state_dir)

    @property
    def missing_file(self) -> Path | None:
        """Return the file of SQLite's database where there is none: then nothing was learned here."""
        file = Path(self.url.removeprefix(_SQLITE)) if self.url.startswith(_SQLITE) else None
        return file if file is not None and not file.exists() else None


def list_jobs(place: DatabaseLocation, *, as_json: bool) -> int:
    """Print every job."""
    jobs = asyncio.run(_with_desk(place, lambda desk: desk.jobs()))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(jobs)).decode())
    elif jobs:
        print_jobs(jobs, console())
    else:
        print("no job has asked for a batch size yet")
    return 0


def show(place: DatabaseLocation, name: str, *, as_json: bool, html: Path | None) -> int:
    """Print what is believed of a job's batch sizes, which is next and why, and its last runs; or write the page."""
    view = asyncio.run(_with_desk(place, lambda desk: _view(desk, name)))
    if html is not None:
        # Bokeh takes longer to import than everything else here: only those who want the page wait for it.
        page: str = import_module("controller.cli.policy.page").render_page(view)
        _write(html, page.encode())
        print(f"{html.resolve().as_uri()}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(as_dict(view))).decode())
    elif html is None:
        print_view(view, console())
    return 0


def export(place: DatabaseLocation, name: str | None, *, out: Path | None) -> int:
    """Write jobs and all their runs as JSON."""

    async def read(desk: TrialRepository) -> list[JobExport]:
        try:
            return await desk.export(name)
        except UnknownJobError as error:
            raise await _with_near_names(desk, name or "", error) from error

    exports = asyncio.run(_with_desk(place, read))
    document = msgspec.json.format(msgspec.json.encode(exports), indent=1) + b"\n"
    if out is None:
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
        return 0
    _write(out, document)
    print(f"{out}: {len(exports)} jobs, {sum(len(each.trials) for each in exports)} runs")
    return 0


def import_(place: DatabaseLocation, file: Path) -> int:
    """Take in what `export` wrote."""
    exports = read_exports(file)
    taken_in = _with_desk(place, lambda desk: desk.import_(exports, now_s=time.time()), may_create=True)
    counts = asyncio.run(taken_in)
    known = f"{counts.n_known_jobs} jobs and {counts.n_known_trials} runs were there already and stay as they were"
    print(f"{counts.n_jobs} jobs and {counts.n_trials} runs taken in; {known}")
    return 0


def forget(place: DatabaseLocation, name: str, *, yes: bool) -> int:
    """Forget a job and all its runs; ask first, unless told not to."""
    if not yes and not sys.stdin.isatty():
        raise ConfigError([f"forget {name}: nobody can be asked here: say --yes"])
    view = asyncio.run(_with_desk(place, lambda desk: _view(desk, name)))
    question = f"Forget {name} and what its runs have taught ({ends_text(view)})? [y/N] "
    if not yes and input(question).strip().lower() not in {"y", "yes"}:
        print("nothing was forgotten")
        return 0
    asyncio.run(_with_desk(place, lambda desk: desk.forget(name)))
    print(f"{name} is forgotten")
    return 0


def read_exports(file: Path) -> list[JobExport]:
    """Return what a file holds.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        document = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return msgspec.json.decode(document, type=list[JobExport])
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror}"]) from error
    except msgspec.DecodeError as error:
        raise ConfigError([f"{file}: {error}: must be what `gridchase policy export` wrote"]) from error


def console() -> Console:
    """Return the console for tables."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


@asynccontextmanager
async def opened_desk(place: DatabaseLocation, *, may_create: bool = False) -> AsyncIterator[TrialRepository]:
    """Open the database, and the desk before it.

    Raises:
        ControllerError: there is no database yet.
    """
    password = read_store_password(place.config.store)
    if (file := place.missing_file) is not None and not may_create:
        raise ControllerError(f"{file}: there is no database: has the service run with this --config and --state-dir?")
    if may_create and not place.config.store.url:
        place.state_dir.mkdir(parents=True, exist_ok=True)
    async with opened_store(place.url, password=password, timeout_s=place.config.store.timeout_s) as store:
        yield TrialRepository(store, place.config.learning)


async def _with_desk(
    place: DatabaseLocation, work: Callable[[TrialRepository], Awaitable[T]], *, may_create: bool = False
) -> T:
    async with opened_desk(place, may_create=may_create) as desk:
        return await work(desk)


async def _view(desk: TrialRepository, name: str) -> JobView:
    try:
        job, posterior = await desk.job(name), await desk.posterior(name)
    except UnknownJobError as error:
        raise await _with_near_names(desk, name, error) from error
    trials: list[Trial] = []
    while page := await desk.trials(name, limit=_PAGE, before=trials[-1].number if trials else None):
        trials += page
        if len(page) < _PAGE or len(trials) >= N_TRIALS:
            break
    return view_of(job, posterior, trials)


async def _with_near_names(desk: TrialRepository, name: str, error: UnknownJobError) -> UnknownJobError:
    """Return the error with names that look like the one that was meant."""
    names = [job.name for job in await desk.jobs()]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`gridchase policy jobs` lists those there are"
    return UnknownJobError(f"{error}; {hint}")


def _write(file: Path, document: bytes) -> None:
    """Write a file whole, or not at all; what is no file, such as a pipe, is written to as it is."""
    if file.exists() and not file.is_file():
        file.write_bytes(document)
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_bytes(document)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PolicyFileError(f"{file}: cannot be written: {error.strerror}") from error
