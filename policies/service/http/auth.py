"""Bearer tokens for writes over HTTP: a file with one a line, read again when it changes, compared in constant time.

```
# a comment
0pZ2…              a token
ada:9f3c…          a token with a name, for the log
```
"""

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20
NOBODY: Final = "a token"
"""The name of a token that has none."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")
"""What can stand behind `Authorization: Bearer` (RFC 6750, section 2.1)."""
_LOGGER = logging.getLogger(__name__)

Stamp = tuple[int, int, int, int]


class WriteTokens:
    """The tokens of one file. It may be asked from several threads: each reads the file as a whole.

    Attributes:
        fault: why no token can be accepted, in a sentence; "" while all is well.
    """

    def __init__(self, path: Path) -> None:
        self.fault = ""
        self._path = path
        self._stamp: Stamp | None = None
        self._owners: tuple[tuple[bytes, str], ...] = ()
        self._is_public = False
        self._refresh()

    def owner_of(self, token: str) -> str | None:
        """Return the name that a token has in the file, `a token` where it has none; None where it is not there.

        Tokens are compared as hashes, all of them, in a time that tells nothing of how much is right.
        """
        self._refresh()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        owners = [owner for known, owner in self._owners if hmac.compare_digest(known, digest)]
        return owners[0] if owners else None

    def _refresh(self) -> None:
        """Read the file where it is another than before. One that cannot be read holds no token."""
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
            if stamp != self._stamp:
                self._owners = tuple(self._read())
                self._stamp = stamp
                self._warn_of_readers(found.st_mode)
            self._note("" if self._owners else "holds no token")
        except (OSError, UnicodeDecodeError) as error:
            self._owners, self._stamp = (), None
            self._note((error.strerror or str(error)) if isinstance(error, OSError) else "is not UTF-8 text")

    def _read(self) -> Iterator[tuple[bytes, str]]:
        with self._path.open(encoding="utf-8") as file:
            lines = file.read(MAX_BYTES).splitlines()
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            name, token = (part.strip() for part in line.rpartition(":")[::2])
            if _TOKEN.match(token):
                yield hashlib.sha256(token.encode()).digest(), name or NOBODY
            else:
                _LOGGER.warning("%s, line %d: is no token: may hold A-Z a-z 0-9 - . _ ~ + / only", self._path, number)

    def _warn_of_readers(self, mode: int) -> None:
        is_public = bool(mode & stat.S_IROTH)
        if is_public and not self._is_public:
            _LOGGER.warning("%s: every user of this machine can read its tokens: chmod o-r it", self._path)
        self._is_public = is_public

    def _note(self, fault: str) -> None:
        """Log a fault when it begins, when it becomes another one, and when it is over."""
        before, self.fault = self.fault, f"{self._path}: {fault}" if fault else ""
        if self.fault and self.fault != before:
            _LOGGER.error("no writes are taken over HTTP: %s", self.fault)
        elif before and not self.fault:
            _LOGGER.info("%s: writes are taken over HTTP again", self._path)
