"""A real PostgreSQL for the live tests: a throw-away cluster that can be killed and started again on the same port.

The server refuses to run as root; then it runs as `postgres`, the user that Debian's package makes.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.live.conftest import free_port, made_once

START_TIMEOUT_S: Final = 180.0
"""initdb writes some 40 MB; two cores may have other things to do."""
_PATIENCE: Final = ("-t", "150")
USER: Final = "postgres"
SETTINGS: Final = (
    "-c listen_addresses=127.0.0.1 -c fsync=on -c max_connections=200 -c shared_buffers=64MB -c log_lock_waits=on"
)
"""`fsync=on` is the default, and what the tests of a killed server are about."""


class Postgres:
    """A cluster of its own in a directory of its own; everybody on this machine may log in without a password.

    Args:
        directory: where its data, its socket and its log are; must belong to `owner`.
        owner: who runs the server; None: who runs the tests.
    """

    def __init__(self, directory: Path, *, owner: str | None) -> None:
        self.port = free_port()
        self._directory = directory
        self._owner = owner
        self._n_databases = 0

    def initialise(self) -> None:
        """Make the cluster."""
        self._call("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")

    @property
    def log(self) -> str:
        """Return what it has logged."""
        return (self._directory / "postgres.log").read_text()

    def start(self) -> None:
        """Start it and wait until it accepts connections, also where it must recover from a crash first."""
        log = str(self._directory / "postgres.log")
        options = f"-p {self.port} -k {self._directory} {SETTINGS}"
        self._call("pg_ctl", "start", "-w", *_PATIENCE, "-D", str(self._data), "-l", log, "-o", options)

    def stop(self) -> None:
        """Stop it as an operator would, cutting every connection."""
        self._call("pg_ctl", "stop", "-w", *_PATIENCE, "-m", "fast", "-D", str(self._data))

    def kill(self) -> None:
        """End it at once, without a checkpoint, as a crash would: the next start recovers."""
        self._call("pg_ctl", "stop", "-w", *_PATIENCE, "-m", "immediate", "-D", str(self._data))

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        self._n_databases += 1
        name = f"test_{self._n_databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def execute(self, database: str, statement: str) -> str:
        """Return what `psql` says to a statement, rows on lines of their own."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database)
        return self._call("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where, "-c", statement)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _call(self, program: str, *arguments: str) -> str:
        executable = find_program(program)
        if executable is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        command = [executable, *arguments]
        if self._owner is not None:
            command = ["setpriv", "--reuid", self._owner, "--regid", self._owner, "--clear-groups", *command]
        # Its output goes to a file: a server that pg_ctl starts would keep a pipe open for as long as it runs.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=START_TIMEOUT_S,
            )
            output.seek(0)
            said = output.read().decode(errors="replace")
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{said}"
        return said


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """Start a PostgreSQL, once for all tests; without one they are skipped, and told what is missing."""
    if find_program("initdb") is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    owner = _owner()
    # pytest's own temporary directories can be entered by their owner alone.
    directory = Path(tempfile.mkdtemp(prefix="gridchase-postgres-"))
    if owner is not None:
        shutil.chown(directory, owner, owner)
    try:
        server = Postgres(directory, owner=owner)

        def initialise(template: Path) -> None:
            server.initialise()
            _copy(directory / "data", template)

        # initdb keeps a core busy for seconds.
        template = made_once(tmp_path_factory, "postgres-template", initialise)
        if not (directory / "data").exists():
            _copy(template / "data", directory)
        server.start()
        yield server
        server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_program(name: str) -> str | None:
    """Return where a program of PostgreSQL is, the newest version first; Debian keeps the server's off the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*"), key=lambda path: _number(path.name), reverse=True)
    folders = [os.environ.get("PATH", ""), *(str(version / "bin") for version in versions)]
    return shutil.which(name, path=os.pathsep.join(folders))


def _copy(data: Path, folder: Path) -> None:
    """Copy a cluster that does not run, with its owner."""
    subprocess.run(["cp", "-a", str(data), str(folder)], check=True, timeout=START_TIMEOUT_S)


def _owner() -> str | None:
    """Return the user to run the server as; None: the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        pytest.skip(f"PostgreSQL refuses to run as root, and there is no user {USER}: apt-get install postgresql")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed: apt-get install util-linux")
    return USER


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
