"""Write access over HTTP: bearer tokens from a file, one a line; without a file, only this machine may write.

```
# a comment
0pZ2…              a token
ada:9f3c…          a token with a name, for the log
```
"""

import asyncio
import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from publishers.shared.http.problems import ProblemError
from publishers.shared.log_once import FaultLog
from publishers.shared.secret_file import read_secret_file

FILE_TIMEOUT_S: Final = 2.0
"""For a look at the file of tokens: its disk may hang."""
UNNAMED: Final = "a token"
"""The name of a token that has none."""
THIS_MACHINE: Final = "this machine"
"""Who writes where no token is required."""
_CHALLENGE: Final = 'Bearer realm="gridchase"'
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")
"""What may follow `Authorization: Bearer` (RFC 6750, section 2.1)."""
_LOGGER = logging.getLogger(__name__)


class WriteTokens:
    """The tokens of one file, read again when it changes. It may be used from several threads: each reads all of it.

    Attributes:
        fault: why no token is accepted, in a sentence; "" while all is well.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int, int] | None = None
        self._owners: tuple[tuple[bytes, str], ...] = ()
        self._log = FaultLog(_LOGGER, recovered=f"{path}: writes over HTTP are accepted again", level=logging.ERROR)
        self._public = FaultLog(_LOGGER)
        self._refresh()

    @property
    def fault(self) -> str:
        """Return why no token is accepted, in a sentence; "" while all is well."""
        return self._log.fault

    def owner_of(self, token: str) -> str | None:
        """Return the name of a token in the file, `a token` where it has none; None where it is not there.

        All tokens are compared, as hashes, in a time that does not depend on how much is right.
        """
        self._refresh()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
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
                is_public = found.st_mode & stat.S_IROTH
                self._public.report(f"{self._path}: every user can read its tokens: chmod o-r it" if is_public else "")
            fault = "" if self._owners else f"{self._path}: holds no token"
        except OSError as error:
            self._owners, self._stamp, fault = (), None, f"{self._path}: {error.strerror}"
        except ValueError as error:
            self._owners, self._stamp, fault = (), None, str(error)
        self._log.report(f"writes over HTTP are refused: {fault}" if fault else "")

    def _read(self) -> Iterator[tuple[bytes, str]]:
        lines = read_secret_file("http.token_file", str(self._path)).splitlines()
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            name, token = (part.strip() for part in line.rpartition(":")[::2])
            if _TOKEN.match(token):
                yield hashlib.sha256(token.encode()).digest(), name or UNNAMED
            else:
                _LOGGER.warning("%s, line %d: not a token: only A-Z a-z 0-9 - . _ ~ + / allowed", self._path, number)


async def authenticate(request: web.Request, tokens: WriteTokens | None, *, is_local: bool) -> str:
    """Return who writes: the name of the token, or `this machine`.

    Args:
        request: the request.
        tokens: those that may write; None: requests from this machine may.
        is_local: whether the server listens on loopback addresses alone.

    Raises:
        ProblemError: the client may not write.
    """
    if tokens is None:
        if is_local:
            return THIS_MACHINE
        detail = "writes need a token: set token_file in [http], or serve on host 127.0.0.1"
        raise ProblemError(HTTPStatus.FORBIDDEN, "no_tokens", detail)
    sent = request.headers.getall("Authorization", [])
    scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        detail = "writes need a token: send it as Authorization: Bearer TOKEN"
        raise ProblemError(HTTPStatus.UNAUTHORIZED, "no_token", detail, headers={"WWW-Authenticate": _CHALLENGE})
    async with asyncio.timeout(FILE_TIMEOUT_S):
        owner = await asyncio.to_thread(tokens.owner_of, token.strip())
    if owner is None:
        challenge = f'{_CHALLENGE}, error="invalid_token"'
        detail = "this token is not among those that may write: see token_file in [http]"
        raise ProblemError(HTTPStatus.UNAUTHORIZED, "wrong_token", detail, headers={"WWW-Authenticate": challenge})
    return owner
