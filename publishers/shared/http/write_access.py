"""Write access over HTTP: bearer tokens, from a file of the operator's and from the service's own.

One a line:

```
# a comment
0pZ2…              a token of an operator, who may write everything
ada:9f3c…          a token of the user ada, who may write what is about her own jobs
```
"""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.http.own_token import make_token, readers_of
from publishers.shared.http.problems import ProblemError, unavailable
from publishers.shared.http.server import is_loopback
from publishers.shared.log_once import FaultLog, LogLimiter

FILE_TIMEOUT_S: Final = 2.0
"""For a look at the files of tokens: their disk may hang."""
OPERATOR: Final = "an operator"
"""Who writes with a token of the operator's file that is no user's."""
OWN: Final = "the service's own token"
"""Who writes with the token that the service has made."""
_CHALLENGE: Final = 'Bearer realm="gridchase"'
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")
"""What may follow `Authorization: Bearer` (RFC 6750, section 2.1)."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: `name` for the log; `user` whose jobs alone it may be about, None: anybody's."""

    name: str
    user: str | None


class WriteTokens:
    """The tokens of one file, read again when it changes. It may be used from several threads: each reads all of it.

    Args:
        path: the file.
        operator: who has the tokens that are no user's, for the log.
        setting: of the configuration that names the file, for the log.
    """

    def __init__(self, path: Path, *, operator: str = OPERATOR, setting: str = "http.token_file") -> None:
        self._path = path
        self._setting = setting
        self._operator = operator
        self._stamp: tuple[int, int, int, int] | None = None
        self._owners: tuple[tuple[bytes, Writer], ...] = ()
        self._line_log = LogLimiter(time.monotonic)
        self._log = FaultLog(_LOGGER, recovered=f"{path}: its tokens are accepted again", level=logging.ERROR)
        self._refresh()

    @property
    def fault(self) -> str:
        """Return why no token of the file is accepted, in a sentence; "" while all is well."""
        return self._log.fault

    def owner_of(self, token: str) -> Writer | None:
        """Return whose a token in the file is; None where it is not there.

        All tokens are compared, as hashes, in a time that does not depend on how much is right.
        """
        return self.owner_of_digest(digest_of(token))

    def owner_of_digest(self, digest: bytes) -> Writer | None:
        """Return whose a token is, by its digest; None where it is not there any more."""
        self._refresh()
        owners = [owner for known, owner in self._owners if hmac.compare_digest(known, digest)]
        return owners[0] if owners else None

    def _refresh(self) -> None:
        """Read the file if it has changed; a file that cannot be read holds no token."""
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
            if stamp != self._stamp:
                self._owners = tuple(self._read())
                self._stamp = stamp
            fault = "" if self._owners else f"{self._path}: holds no token"
        except OSError as error:
            self._owners, self._stamp, fault = (), None, f"{self._path}: {error.strerror}"
        except ValueError as error:
            self._owners, self._stamp, fault = (), None, str(error)
        self._log.report(f"no token for writes over HTTP: {fault}" if fault else "")

    def _read(self) -> Iterator[tuple[bytes, Writer]]:
        lines = read_secret_file(self._setting, str(self._path)).splitlines()
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            name, colon, token = (part.strip() for part in line.rpartition(":"))
            if _TOKEN.match(token) and (name or not colon):  # whose name is missing is no operator for that
                yield digest_of(token), Writer(name or self._operator, name or None)
            elif self._line_log.allows(number):
                what = "TOKEN or USER:TOKEN, the token of A-Z a-z 0-9 - . _ ~ + / alone"
                _LOGGER.warning("%s, line %d: not a token: must be %s", self._path, number, what)


def digest_of(token: str) -> bytes:
    """Return what a token is known by."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class WriteAccess:
    """Who may write over HTTP: whoever has the service's own token, or one of the operator's file.

    Args:
        own: the file of the service's own token, which is made where it is missing.
        configured: the operator's file of tokens, or None.
        owner: who has the service's own token, for the log.
    """

    def __init__(self, own: Path, configured: Path | None, *, owner: str = OWN) -> None:
        fault = _fault_of(own)
        if fault:
            _LOGGER.error("no token for writes over HTTP: %s", fault)
        self._files = [] if fault else [WriteTokens(own, operator=owner)]
        self._places = fault or f"{own} holds one, which {readers_of(own)} may read"
        if configured is not None:
            self._files.append(WriteTokens(configured))
            self._places += f"; http.token_file = {str(configured)!r} holds those of the operator"
        self._disk = DiskThread("gridchase tokens", timeout_s=FILE_TIMEOUT_S)

    async def authenticate(self, request: web.Request) -> str:
        """Return who writes: the name of the token.

        Raises:
            ProblemError: the client may not write.
        """
        sent = request.headers.getall("Authorization", [])
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not token.strip():
            what = "reading from another machine needs" if request.method == "GET" else "writes need"
            detail = f"{what} a token: send it as Authorization: Bearer TOKEN; {self._place(request)}"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "no_token", detail, headers={"WWW-Authenticate": _CHALLENGE})
        try:
            owner = await self._disk.run(partial(self._owner_of, token.strip()))
        except OSError as error:
            raise unavailable("timeout", f"the files of tokens cannot be read: {error.strerror}") from error
        if owner is None:
            challenge = f'{_CHALLENGE}, error="invalid_token"'
            detail = f"this token is not among those that may write; {self._place(request)}"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "wrong_token", detail, headers={"WWW-Authenticate": challenge})
        if owner.user not in {None, request.match_info.get("user")}:
            detail = f"this token is for the jobs of user {owner.user} alone; this needs one of the operator"
            raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_user", detail)
        return owner.name

    def _owner_of(self, token: str) -> Writer | None:
        owners = [file.owner_of(token) for file in self._files]
        return next((owner for owner in owners if owner is not None), None)

    def _place(self, request: web.Request) -> str:
        """Return where a token is; from elsewhere the paths of this machine help nobody."""
        return self._places if is_loopback(request.remote or "") else "ask the operator of this service for one"


def _fault_of(own: Path) -> str:
    """Make the service's own token where there is none; return why there is none, in a sentence."""
    try:
        make_token(own)
    except OSError as error:
        return f"{own}: {error.strerror}"
    except ValueError as error:
        return str(error)
    return ""
