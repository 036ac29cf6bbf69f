"""What every provider of signals offers, how it is set up, and how one fails."""

from pathlib import Path
from typing import Annotated, Final, Protocol

from msgspec import Meta, Struct
from yarl import URL

from policies.vocabulary.signal import Signal, SignalKind

MAX_FAULTS_SHOWN: Final = 50
MAX_MESSAGE: Final = 300
"""How long the message of an error may be [characters]: sources write pages."""

Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Lateness = Annotated[float, Meta(ge=0, le=86_400)]
Url = Annotated[
    str,
    Meta(
        pattern=r"\Ahttps?://[^\s@]+\Z", description="a URL, http:// or https://, with no blank, user or password in it"
    ),
]
"""An address without a user or a password in it."""
UrlOrNone = Annotated[
    str,
    Meta(
        pattern=r"\A(https?://[^\s@]+)?\Z",
        description='a URL, http:// or https://, with no blank, user or password in it, or ""',
    ),
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Z_][A-Z0-9_]*\Z",
        description="the name of an environment variable: A-Z 0-9 _, and no digit first",
    ),
]
"""The name of an environment variable, in capitals: what stands there by mistake is no name, but the secret itself."""


class Provider(Protocol):
    """A source of signals: what was, and what is expected."""

    @property
    def name(self) -> str:
        """Return who it is, for logs, dashboards and the store: the source and the zone."""
        ...

    @property
    def kind(self) -> SignalKind:
        """Return what its values are; the kinds never mix."""
        ...

    @property
    def step_s(self) -> float:
        """Return how often it has something new [s]; it is asked once a step. Infinite where nothing ever changes."""
        ...

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s` and start by `now_s`, or None where nothing is known.

        The first may start before `since_s`: no value is cut in two. A source that keeps less gives less. What is
        missing is NaN: gaps are never bridged.

        Raises:
            SignalError: the source failed.
        """
        ...

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return what is expected after `now_s`, up to `until_s`, or None where the source has no forecast.

        Raises:
            SignalError: the source failed.
        """
        ...


class ProviderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[signal.provider]]` table, but for its name.

    Attributes:
        max_age_s: how long the last value may be held after it ceased to hold [s].
        lag_s: how late its values usually are, beyond one step: what is no later than that is no fault [s]. A source
            that is always late has another default.
    """

    max_age_s: Lateness = 7_200.0
    lag_s: Lateness = 0.0

    def signal_kind(self) -> SignalKind:
        """Return what the values will be; settings of a source that can be several things have a key `kind`."""
        return "average"

    def faults(self) -> list[str]:
        """Return what is wrong beyond the single keys, each as `key = value: must …`."""
        return []

    def all_faults(self) -> list[str]:
        """Return that, and what is wrong with an address of HTTP, whose value is not repeated: it may hold a token."""
        url = getattr(self, "url", "")
        return [*(_url_faults(url) if url.startswith(("http://", "https://")) else []), *self.faults()]


class SignalError(Exception):
    """A source of signals failed.

    Attributes:
        retry_after_s: how long the source asked us to wait, or None where it did not say [s].
        status: the status of its HTTP answer, or None where there was none.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, status: int | None = None) -> None:
        self.retry_after_s = retry_after_s
        self.status = status
        super().__init__(_one_line(message))


class SignalUnavailableError(SignalError):
    """The source cannot be reached, is too slow, or is broken at the moment: it may work in a minute."""


class SignalLimitedError(SignalError):
    """The source was asked too often."""


class SignalRefusedError(SignalError):
    """The source refuses the request: a token, a zone or a plan is wrong, and stays wrong until somebody mends it."""


class SignalDataError(SignalError):
    """What the source sent is not what was asked for: its shape, its zone, its unit, or its time is wrong."""


class SignalFileError(SignalError):
    """A signal file is wrong; `faults` lists every fault, each with its line number where it has one."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        more = [f"{path}: and {len(faults) - len(shown)} more faults"] if len(faults) > len(shown) else []
        super().__init__("")
        self.args = ("\n".join([*shown, *more]),)


def _one_line(message: str) -> str:
    """Return a message that fits a log and a dashboard: on one line, cut where it is long."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 1]}…"


def _url_faults(url: str) -> list[str]:
    """Return what is wrong with an address that requests are added to."""
    try:
        address = URL(url)
        if not address.host or not address.port:
            return ["url: must name a server"]
    except ValueError:
        return ["url: must be an address such as https://api.example.org, with a port of at most 65535"]
    if address.raw_query_string or address.raw_fragment or url.endswith(("?", "#")):
        return ["url: must have no query and no fragment (a token has keys of its own)"]
    return ["url: must name no user and no password"] if address.user or address.password else []
