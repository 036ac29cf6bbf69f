"""Who is signed in: sessions of bounded number and length, known by a random id; and the proofs that forms are ours.

Only a digest of an id is kept. A form carries a code for the session and the address that it is sent to, so that no
other site can make one. Times are monotonic.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Final

from publishers.shared.http.write_access import Writer
from publishers.shared.recent_dict import RecentDict

SESSION_S: Final = 8 * 3_600.0
"""A session ends after a working day [s]."""
IDLE_S: Final = 3_600.0
"""And when it was not used for so long [s]."""
MAX_SESSIONS: Final = 64
"""Of more, the one that was used longest ago ends."""
MAX_OF_TOKEN: Final = 16
"""Likewise of one token, so that nobody ends the sessions of all others."""
_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who is signed in.

    Attributes:
        writer: whose token it was.
        name: as whom, for the log.
        token: the digest of the token: the session ends with it.
        begun_s, used_s: when it began, and was used last [s].
    """

    writer: Writer
    name: str
    token: bytes
    begun_s: float
    used_s: float


class Sessions:
    """The sessions of this process, which end with it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_ID_BYTES)
        self._sessions: RecentDict[bytes, Session] = RecentDict(MAX_SESSIONS)

    def begin(self, writer: Writer, name: str, token: bytes, now_s: float) -> str:
        """Return the id of a new session."""
        own = [digest for digest, session in self._sessions.items() if session.token == token]
        if len(own) >= MAX_OF_TOKEN:
            del self._sessions[own[0]]
        session_id = new_id()
        session = Session(writer=writer, name=name, token=token, begun_s=now_s, used_s=now_s)
        self._sessions[_digest(session_id)] = session
        return session_id

    def find(self, session_id: str, now_s: float) -> Session | None:
        """Return a session that has not ended, and note that it is used."""
        digest = _digest(session_id)
        session = self._sessions.get(digest)
        if session is None:
            return None
        if now_s - session.begun_s >= SESSION_S or now_s - session.used_s >= IDLE_S:
            del self._sessions[digest]
            return None
        self._sessions[digest] = session = replace(session, used_s=now_s)
        return session

    def end(self, session_id: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(_digest(session_id), None)

    def form_code(self, session_id: str, form: str) -> str:
        """Return the code of a form, for whoever has an id."""
        return hmac.new(self._key, f"{session_id}\n{form}".encode(), hashlib.sha256).hexdigest()

    def is_form_code(self, code: str, session_id: str, form: str) -> bool:
        """Return whether a form is ours; how long that takes tells nothing."""
        return hmac.compare_digest(code.encode("utf-8", "replace"), self.form_code(session_id, form).encode())


def new_id() -> str:
    """Return a random id, of a session or of who is about to sign in."""
    return secrets.token_urlsafe(_ID_BYTES)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "replace")).digest()
