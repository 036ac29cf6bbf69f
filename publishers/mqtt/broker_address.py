"""Where a broker is and how it is reached, and what it means where it cannot be reached."""

import socket
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from aiomqtt.exceptions import MqttCodeError, MqttConnectError
from paho.mqtt.reasoncodes import ReasonCode

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_BAD_PASSWORD, _NOT_AUTHORISED = 134, 135
"""Paho translates the CONNACK codes 4 and 5 of MQTT 3.1.1 into these of MQTT 5."""


class Trouble(StrEnum):
    """The kinds of what can be wrong between us and the broker."""

    REFUSED = "refused"
    NAME = "name"
    PASSWORD = "password"  # noqa: S105 — a kind of trouble, no password
    TLS = "tls"
    TIMEOUT = "timeout"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong, in a sentence that says what to do."""

    trouble: Trouble
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker: `mqtt://host[:port]` (1883) or, with TLS, `mqtts://host[:port]` (8883), and what it asks for."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    host: str = field(init=False)
    port: int = field(init=False)
    tls: bool = field(init=False)

    def __post_init__(self) -> None:
        """Take the URL apart.

        Raises:
            ValueError: it is none.
        """
        if "@" in self.url:  # first of all: no message below may show a password
            raise ValueError("a broker's URL must hold no user name: set bus.username and bus.password_file")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{self.url!r} is no broker's URL: {error}") from error
        rest = parts.path.strip("/") or parts.query or parts.fragment or any(map(str.isspace, self.url))
        if parts.scheme not in _PORTS or not host or port == 0 or rest:
            raise ValueError(
                f"{self.url!r} is no broker's URL: must be mqtt://host[:port] or, with TLS, mqtts://host[:port]"
            )
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "port", port or _PORTS[parts.scheme])
        object.__setattr__(self, "tls", parts.scheme == "mqtts")

    @property
    def address(self) -> str:
        """Return host and port, for people."""
        return f"{self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings, or None where there is no TLS; reads the disk.

        Raises:
            OSError: `ca_file` cannot be read, or holds no certificate.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # which does not say that it is about this file
            raise OSError(error.errno, error.strerror or str(error), self.ca_file) from error

    def explain(self, error: BaseException) -> Fault:
        """Return what an error of aiomqtt, or one beneath it, means."""
        match error:
            case MqttConnectError():
                fault = self._explain_refusal(error)
            case MqttCodeError():
                fault = Fault(trouble=Trouble.OTHER, sentence=f"the connection to {self.address} ended: {error}")
            case socket.gaierror():
                sentence = f"the name {self.host!r} cannot be resolved ({error.strerror}): check bus.url"
                fault = Fault(trouble=Trouble.NAME, sentence=sentence)
            case ConnectionRefusedError():
                sentence = f"nothing listens at {self.address}: start a broker (`gridchase broker`) or set bus.url"
                fault = Fault(trouble=Trouble.REFUSED, sentence=sentence)
            case ssl.SSLError():
                fault = self._explain_tls(error)
            case TimeoutError():
                fault = self.silent()
            case OSError():
                fault = self._explain_os(error)
            case _:
                fault = self._explain_beneath(error)
        return fault

    def silent(self) -> Fault:
        """Return what it means that nobody answers."""
        sentence = f"{self.address} does not answer in time: check host, port and firewall; {self._tls_hint()}"
        return Fault(trouble=Trouble.TIMEOUT, sentence=sentence)

    def _explain_beneath(self, error: BaseException) -> Fault:
        """Explain what aiomqtt's own errors hide: it turns every OSError into an MqttError with the same words."""
        beneath = error.__cause__ or error.__context__
        if beneath is not None:
            return self.explain(beneath)
        if "timed out" in str(error):
            return self.silent()
        return Fault(trouble=Trouble.OTHER, sentence=f"the connection to {self.address} failed: {error}")

    def _explain_refusal(self, error: MqttConnectError) -> Fault:
        code = error.rc.value if isinstance(error.rc, ReasonCode) else error.rc
        if code not in {_BAD_PASSWORD, _NOT_AUTHORISED}:
            return Fault(trouble=Trouble.OTHER, sentence=f"the broker at {self.address} refuses us: {error}")
        if self.username:
            wrong = f"does not accept user {self.username!r} with this password: check"
        else:
            wrong = "asks for a user name and a password: set"
        sentence = f"the broker at {self.address} {wrong} bus.username and bus.password_file"
        return Fault(trouble=Trouble.PASSWORD, sentence=sentence)

    def _explain_tls(self, error: ssl.SSLError) -> Fault:
        if isinstance(error, ssl.SSLCertVerificationError):
            mend = (
                f"{error.verify_message}; set bus.ca_file to the certificate of the authority that signed the broker's"
            )
            return Fault(trouble=Trouble.TLS, sentence=f"TLS: the certificate of {self.address} is not trusted: {mend}")
        mend = f"{error}; does it speak TLS at this port?"
        return Fault(trouble=Trouble.TLS, sentence=f"TLS with {self.address} failed: {mend}")

    def _explain_os(self, error: OSError) -> Fault:
        if error.filename is not None:
            sentence = f"bus.ca_file {error.filename}: {error.strerror}"
            return Fault(trouble=Trouble.TLS, sentence=sentence)
        hint = f"; {self._tls_hint()}" if isinstance(error, ConnectionResetError) else ""
        sentence = f"the connection to {self.address} failed: {error.strerror or error}{hint}"
        return Fault(trouble=Trouble.OTHER, sentence=sentence)

    def _tls_hint(self) -> str:
        return "does it speak TLS at this port?" if self.tls else "a broker with TLS needs mqtts://"
