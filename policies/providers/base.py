"""The interface of a signal provider, its settings, and its errors."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, Protocol, runtime_checkable

from msgspec import Meta, Struct
from yarl import URL

from policies.vocabulary.signal import Signal, SignalKind

MAX_FAULTS_SHOWN: Final = 50
MAX_MESSAGE: Final = 300
"""The longest error message [characters]: some sources answer with whole pages."""

Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Lateness = Annotated[float, Meta(ge=0, le=86_400)]
Url = Annotated[
    str,
    Meta(
        pattern=r"\Ahttps?://[^\s@]+\Z", description="a URL, http:// or https://, with no blank, user or password in it"
    ),
]
"""A URL without a user or a password."""
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
"""The name of an environment variable, in capitals: a secret that was put here by mistake hardly looks like one."""


class Provider(Protocol):
    """A source of signals: history and forecast."""

    @property
    def name(self) -> str:
        """Return its name for logs, dashboards and the history store: the source and the zone."""
        ...

    @property
    def kind(self) -> SignalKind:
        """Return what its values are; kinds never mix."""
        ...

    @property
    def step_s(self) -> float:
        """Return how often it has a new value [s]: it is polled once a step. Infinite if nothing ever changes."""
        ...

    @property
    def losses(self) -> str:
        """Return what its last history leaves out, in words: how many values, and why; "" if nothing."""
        ...

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s` and start by `now_s`, or None if nothing is known.

        The first may start before `since_s`: no value is cut in two. A source that keeps less returns less. Missing
        values are NaN: gaps are never bridged.

        Raises:
            SignalError: the source failed.
        """
        ...

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the forecast after `now_s`, up to `until_s`, or None if the source has no forecast.

        Raises:
            SignalError: the source failed.
        """
        ...


@runtime_checkable
class PushProvider(Provider, Protocol):
    """A provider whose source sends by itself.

    Attributes:
        news: set when a value comes, and cleared by the poll that returns it.
    """

    news: asyncio.Event


class ProviderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[signal.provider]]` table without its `name`.

    Attributes:
        max_age_s: how long the last value may be held after its end [s].
        lag_s: how late values usually are, beyond one step [s]; such a delay is no fault. Sources that are always late
            have another default.
    """

    max_age_s: Lateness = 7_200.0
    lag_s: Lateness = 0.0

    def signal_kind(self) -> SignalKind:
        """Return what the values will be; a source with several kinds has a key `kind`."""
        return "average"

    def faults(self) -> list[str]:
        """Return faults that no single key shows, each as `key = value: must …`."""
        return []

    def all_faults(self) -> list[str]:
        """Return these and the faults of an HTTP URL, which is not repeated: it may hold a token."""
        url = getattr(self, "url", "")
        return [*(_url_faults(url) if url.startswith(("http://", "https://")) else []), *self.faults()]


class PriceSettings(ProviderSettings, frozen=True, kw_only=True):
    """A `[[signal.provider]]` table of prices."""

    def signal_kind(self) -> SignalKind:
        """Return `price`."""
        return "price"


class SignalError(Exception):
    """A source of signals failed.

    Attributes:
        retry_after_s: how long the source asked us to wait [s], or None.
        status: the HTTP status of the answer, or None.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, status: int | None = None) -> None:
        self.retry_after_s = retry_after_s
        self.status = status
        super().__init__(_one_line(message))

    @property
    def is_refusal(self) -> bool:
        """Return whether the source refuses the request itself; a plan may refuse an endpoint by 401."""
        return isinstance(self, SignalRefusedError) or self.status == HTTPStatus.UNAUTHORIZED


class SignalUnavailableError(SignalError):
    """The source cannot be reached, is too slow, or is broken for the moment."""


class SignalLimitedError(SignalError):
    """The source refuses requests that come too often."""


class SignalRefusedError(SignalError):
    """The source refuses the request: a token, a zone or a plan is wrong until it is corrected."""


class SignalDataError(SignalError):
    """The answer is not what was asked for: its shape, zone, unit or time is wrong."""


class SignalFileError(SignalError):
    """A signal file is wrong; `faults` lists all faults, with line numbers where possible."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        more = [f"{path}: and {len(faults) - len(shown)} more faults"] if len(faults) > len(shown) else []
        super().__init__("")
        self.args = ("\n".join([*shown, *more]),)


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 1]}…"


def _url_faults(url: str) -> list[str]:
    try:
        address = URL(url)
        if not address.host or not address.port:
            return ["url: must name a server"]
    except ValueError:
        return ["url: must be an address such as https://api.example.org, with a port of at most 65535"]
    if address.raw_query_string or address.raw_fragment or url.endswith(("?", "#")):
        return ["url: must have no query and no fragment (a token has keys of its own)"]
    return ["url: must name no user and no password"] if address.user or address.password else []
