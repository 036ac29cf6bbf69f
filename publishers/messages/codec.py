"""The codec of the bus: bounds of every kind of value, and messages as MessagePack or JSON.

Training processes publish MessagePack; dashboards read JSON: flat, with the unit in each name. Times: `…_s` are Unix
seconds (UTC), `…_ns` are CLOCK_MONOTONIC of the node. Unknown fields are ignored, so that versions can differ; fields
that are None are left out. `decode` checks every value: it returns a valid record or raises `DecodeError`, and nothing
else.
"""

import math
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgpack
import msgspec
from msgspec import Meta, Struct

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
Text = Annotated[str, Meta(max_length=256)]
MAX_SENTENCE: Final = 1_024
Sentence = Annotated[str, Meta(max_length=MAX_SENTENCE)]
TopicText = Annotated[str, Meta(min_length=1, max_length=2048)]
BatchSize = Annotated[int, Meta(ge=1, le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53))]
MAX_TIME_S: Final = 1e11
TimeS = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
IterationTimeS = Annotated[float, Meta(gt=0, le=1e6)]
TimeNs = Annotated[int, Meta(ge=0, le=(1 << 62))]
PowerW = Annotated[float, Meta(ge=0, le=1e6)]
Ratio = Annotated[float, Meta(ge=0, le=1e6)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
TopicRoot = Annotated[
    str,
    Meta(
        pattern=r"\A[^/#+\s][^#+\s]{0,127}(?<!/)\Z",
        description="1 to 128 characters, with no blank, + or # among them, and no / at either end",
    ),
]
"""The first levels of every topic; users see the description when a value is refused."""
GpuRef = Annotated[str, Meta(min_length=1, max_length=96)] | Annotated[int, Meta(ge=0, le=1023)]
"""A GPU as a training process names it: a UUID (or the beginning of one), or an index on its node."""


MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_BINARY_BYTES: Final = 1 << 19
MAX_ITEMS: Final = 4_096
_MAX_TEXT: Final = 4_096


class DecodeError(ValueError):
    """The payload is not a valid message of its class."""


class Outgoing(Struct, frozen=True, kw_only=True):
    """An encoded message and how to publish it; also the last will of a connection."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the bus, as JSON unless the class says otherwise; with numbers rounded unless they are `exact`."""

    packed: ClassVar[bool] = False
    exact: ClassVar[bool] = False


class PackedMessage(Message, frozen=True, kw_only=True):
    """A machine event, as MessagePack."""

    packed: ClassVar[bool] = True


M = TypeVar("M", bound=Message)

_DECIMALS: Final = (
    ("_g_per_kwh", 2),
    ("_w", 2),
    ("_j", 1),
    ("_g", 3),
    ("_s", 3),
    ("_c", 1),
    ("_ratio", 4),
    ("cost", 6),
)
"""What is known of a quantity, by the end of its name: decimals."""
_RATES: Final = ("_per_s", "_per_s_ci", "value", "lower", "upper")
_RATE_DIGITS: Final = 6
"""Rates and the values of signals may be of any size: significant digits."""


def encode(message: Message) -> bytes:
    """Return the payload of a message: MessagePack for machine events, JSON for what people read."""
    if message.packed:
        packed: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)))
        return packed
    return msgspec.json.encode(message if message.exact else _rounded("", msgspec.to_builtins(message)))


def _rounded(name: str, value: Any) -> Any:  # noqa: ANN401 — a tree of plain types
    """Return a number rounded to what is known of it, by its name; a list or a map with all in it."""
    if isinstance(value, float):
        if name.endswith(_RATES):
            return float(f"{value:.{_RATE_DIGITS}g}")
        decimals = _decimals(name)
        return value if decimals is None else round(value, decimals)
    if isinstance(value, dict):
        return {key: _rounded(key, item) for key, item in value.items()}
    return [_rounded(name, item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=1_024)  # fields have few names, but maps may have any
def _decimals(name: str) -> int | None:
    """Return what is known of a quantity, by its name; None: all of it."""
    return next((decimals for suffix, decimals in _DECIMALS if name.endswith(suffix)), None)


def decode(payload: bytes, kind: type[M]) -> M:
    """Return the message of class `kind` in `payload`.

    Raises:
        DecodeError: it is too long, malformed, or some value is missing, of the wrong type or out of bounds.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"{len(payload)} bytes: must be at most {MAX_MESSAGE_BYTES}")
    try:
        fields = _unpack(payload) if kind.packed else msgspec.json.decode(payload)
        message = msgspec.convert(fields, kind)
    except (
        ValueError,
        TypeError,
        RecursionError,
        OverflowError,
        msgspec.MsgspecError,
        msgpack.UnpackException,
    ) as error:
        raise DecodeError(f"{kind.__name__}: {error}") from error
    if not _is_finite(fields):
        raise DecodeError(f"{kind.__name__}: a number is not finite")
    return message


def _unpack(payload: bytes) -> Any:  # noqa: ANN401 — it is checked by msgspec.convert, next
    return msgpack.unpackb(
        payload,
        strict_map_key=True,
        max_str_len=_MAX_TEXT,
        max_bin_len=MAX_BINARY_BYTES,
        max_array_len=MAX_ITEMS,
        max_map_len=64,
        max_ext_len=0,
    )


def _is_finite(value: object) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    return all(
        math.isfinite(item) if isinstance(item, float) else not isinstance(item, dict | list) or _is_finite(item)
        for item in items
    )
