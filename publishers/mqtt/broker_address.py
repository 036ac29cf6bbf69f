"""The address of a broker, shared by the training side and the asyncio client, and why a connection to it fails."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    import ssl

    from paho.mqtt.reasoncodes import ReasonCode

DEFAULT_URL: Final = "mqtt://127.0.0.1:1883"
_DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
BAD_CREDENTIALS: Final = (134, 135)
"""Bad user name or password, and not authorised: paho maps the CONNACK codes 4 and 5 of MQTT 3.1.1 to these."""


class SettingNames(Struct, frozen=True, kw_only=True):
    """What a program calls the settings of its broker, so that an error names those that its user can change."""

    url: str = "the broker's URL"
    username: str = "the user name"
    password: str = "the password"  # noqa: S105 — a name, not a password
    ca_file: str = "the file of certificate authorities"

    @classmethod
    def of_table(cls, table: str = "") -> "SettingNames":
        """Return the keys of a table of a configuration: `bus.url`, …, `bus.password_file`, `bus.ca_file`."""
        prefix = f"{table}." if table else ""
        return cls(
            url=f"{prefix}url",
            username=f"{prefix}username",
            password=f"{prefix}password_file",
            ca_file=f"{prefix}ca_file",
        )

    def fill_in(self, remedy: str) -> str:
        """Return a remedy with these names for `{url}`, `{username}`, `{password}` and `{ca_file}`."""
        return remedy.format(url=self.url, username=self.username, password=self.password, ca_file=self.ca_file)


class BrokerAddressError(ValueError):
    """A broker's URL, or what stands beside it, is wrong.

    Attributes:
        setting: which field of `BrokerAddress` is at fault: `url` or `ca_file`.
        rule: what it must be.
    """

    def __init__(self, message: str, *, setting: str, rule: str, remedy: str = "") -> None:
        self.setting = setting
        self.rule = rule
        self._remedy = remedy
        super().__init__(message)

    def sentence(self, names: SettingNames) -> str:
        """Return what is wrong and what to do, with the names that the settings have in this program."""
        return f"{self}: {names.fill_in(self._remedy)}" if self._remedy else str(self)


class FaultKind(StrEnum):
    """Why a connection to a broker fails."""

    REFUSED = "refused"
    NAME = "name"
    CREDENTIALS = "credentials"
    TLS = "tls"
    TIMEOUT = "timeout"
    OTHER = "other"


class ConnectionFault(Struct, frozen=True, kw_only=True):
    """Why a connection failed, and what to do about it.

    Attributes:
        kind: the kind of fault.
        problem: what is wrong.
        remedy: what to do, or ""; `{url}`, `{username}`, `{password}` and `{ca_file}` stand for the settings' names.
    """

    kind: FaultKind
    problem: str
    remedy: str = ""

    @property
    def is_absence(self) -> bool:
        """Return whether no broker answered, so that the next one may be another."""
        return self.kind in {FaultKind.REFUSED, FaultKind.TIMEOUT}

    def sentence(self, names: SettingNames) -> str:
        """Return problem and remedy, with the names that the settings have in this program."""
        return f"{self.problem}: {names.fill_in(self.remedy)}" if self.remedy else self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker, `mqtt://host[:port]` (1883) or, with TLS, `mqtts://host[:port]` (8883), and the credentials for it.

    Args:
        url: the URL; with `allow_credentials` it may hold `user:password@`, which the attribute `url` does not show.
        username: our user name; "": that of the URL, else none.
        password: its password; "": that of the URL, else none.
        ca_file: the certificate authorities that the broker is checked against; "": those of the system.
        allow_credentials: whether the URL may hold a user name and a password.

    Raises:
        BrokerAddressError: the URL is malformed or holds credentials that it may not hold, or there is a `ca_file`
            without TLS. No message shows a password.
    """

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    allow_credentials: bool = field(default=False, repr=False, compare=False)
    host: str = field(init=False)
    port: int = field(init=False)
    tls: bool = field(init=False)

    def __post_init__(self) -> None:
        """Parse the URL."""
        if "@" in self.url and not self.allow_credentials:
            rule, remedy = "must hold no user name and no password", "set {username} and {password}"
            raise BrokerAddressError(f"a broker's URL {rule}", setting="url", rule=rule, remedy=remedy)
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise self._malformed(f" ({error})" if "@" not in self.url else "") from error
        rest = parts.path.strip("/") or parts.query or parts.fragment or any(map(str.isspace, self.url))
        if parts.scheme not in _DEFAULT_PORTS or not host or port == 0 or rest:
            raise self._malformed()
        tls = parts.scheme == "mqtts"
        if self.ca_file and not tls:
            rule = "needs a broker with TLS, whose URL begins with mqtts://"
            raise BrokerAddressError(f"ca_file = {self.ca_file!r}: {rule}", setting="ca_file", rule=rule)
        values = {
            "username": self.username or unquote(parts.username or ""),
            "password": self.password or unquote(parts.password or ""),
            "host": host,
            "port": port or _DEFAULT_PORTS[parts.scheme],
            "tls": tls,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "url", f"{parts.scheme}://{self.host_and_port}")

    @property
    def host_and_port(self) -> str:
        """Return `host:port`, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def tls_context(self) -> "ssl.SSLContext | None":
        """Return the TLS settings, or None without TLS; reads the disk.

        Raises:
            OSError: `ca_file` cannot be read, or holds no certificate; `filename` is set.
        """
        if not self.tls:
            return None
        import ssl  # noqa: PLC0415 — takes 10 ms, and most trainings use no TLS

        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), self.ca_file) from error

    def explain(self, error: BaseException) -> ConnectionFault:
        """Return what an error of the network means."""
        import socket  # noqa: PLC0415 — both take time, and most trainings' connections never fail
        import ssl  # noqa: PLC0415

        at = self.host_and_port
        match error:
            case socket.gaierror():
                kind, remedy = FaultKind.NAME, "check {url}"
                problem = f"the name {self.host!r} cannot be resolved ({error.strerror})"
            case ConnectionRefusedError():
                kind, remedy = FaultKind.REFUSED, "start a broker (`gridchase broker`) or set {url}"
                problem = f"nothing listens at {at}"
            case ssl.SSLCertVerificationError():
                kind, remedy = (
                    FaultKind.TLS,
                    "set {ca_file} to the certificate of the authority that signed the broker's",
                )
                problem = f"TLS: the certificate of {at} is not trusted: {error.verify_message}"
            case ssl.SSLError():
                kind, remedy = FaultKind.TLS, "does it use TLS on this port?"
                problem = f"TLS with {at} failed: {error}"
            case TimeoutError():
                return self.explain_silence()
            case ConnectionAbortedError():
                return self.explain_close()
            case OSError(filename=str(file)):
                kind, remedy = FaultKind.TLS, "check {ca_file}"
                problem = f"the file of certificate authorities, {file}, cannot be used: {error.strerror}"
            case _:
                kind, remedy = FaultKind.OTHER, self._tls_hint() if isinstance(error, ConnectionResetError) else ""
                problem = f"the connection to {at} failed: {getattr(error, 'strerror', None) or error}"
        return ConnectionFault(kind=kind, problem=problem, remedy=remedy)

    def explain_refusal(self, reason: "ReasonCode | int | None") -> ConnectionFault:
        """Return what it means that the broker answers CONNECT with this reason code of MQTT 5."""
        at = self.host_and_port
        if getattr(reason, "value", reason) not in BAD_CREDENTIALS:
            return ConnectionFault(kind=FaultKind.OTHER, problem=f"the broker at {at} refuses the connection: {reason}")
        if self.username:
            problem = f"the broker at {at} does not accept user {self.username!r} with this password"
            remedy = "check {username} and {password}"
        else:
            problem, remedy = f"the broker at {at} asks for a user name and a password", "set {username} and {password}"
        return ConnectionFault(kind=FaultKind.CREDENTIALS, problem=problem, remedy=remedy)

    def explain_silence(self) -> ConnectionFault:
        """Return what a timeout means."""
        problem = f"{self.host_and_port} does not answer in time"
        remedy = f"check host, port and firewall; {self._tls_hint()}"
        return ConnectionFault(kind=FaultKind.TIMEOUT, problem=problem, remedy=remedy)

    def explain_close(self) -> ConnectionFault:
        """Return what it means that the connection is closed before the broker has answered CONNECT."""
        problem = f"{self.host_and_port} closes the connection without an answer"
        remedy = f"is it an MQTT broker, and what does its log say? {self._tls_hint()}"
        return ConnectionFault(kind=FaultKind.OTHER, problem=problem, remedy=remedy)

    def _tls_hint(self) -> str:
        return "does it use TLS on this port?" if self.tls else "a broker with TLS needs mqtts://"

    def _malformed(self, detail: str = "") -> BrokerAddressError:
        rule = f"must be mqtt://host[:port] or, with TLS, mqtts://host[:port]{detail}"
        return BrokerAddressError(
            f"{without_password(self.url)!r} is no broker's URL: {rule}", setting="url", rule=rule
        )


def without_password(url: str) -> str:
    """Return a URL, perhaps without a scheme, without user name and password: they may hold any of `:`, `/` and `@`."""
    return re.sub(r"\A([A-Za-z][A-Za-z0-9+.-]*://)?.*@", r"\1…@", url, flags=re.DOTALL)
