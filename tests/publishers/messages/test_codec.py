"""The codec: what publishers encode is decoded, and what nobody should send is refused by a `DecodeError`."""

import json
import math
from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from publishers.messages.codec import MAX_MESSAGE_BYTES, DecodeError, Message, decode, encode
from publishers.messages.training import (
    MAX_ITERATIONS,
    Iterations,
    Metric,
    RankStatus,
    TrialAnswer,
    TrialTimes,
    pack_ends,
    pack_work,
)
from tests.publishers.messages.samples import GOLDEN

KINDS = [type(message) for message, _ in GOLDEN]
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=64)
COUNTS = st.integers(0, 1 << 53)
PLAIN = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()
TREES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner))


def fields_of(kind: type[Message]) -> dict[str, Any]:
    """Return the fields of a golden message."""
    payload = next(payload for message, payload in GOLDEN if type(message) is kind)
    fields: dict[str, Any] = msgpack.unpackb(payload) if kind.packed else json.loads(payload)
    return fields


def decoded(kind: type[Message], **changes: object) -> Message:
    """Return a golden message with changes, sent over the wire."""
    fields = fields_of(kind) | changes
    return decode(msgpack.packb(fields) if kind.packed else json.dumps(fields).encode(), kind)


def packed_ends(*ends_ns: int) -> bytes:
    return pack_ends(array("q", ends_ns))


@given(
    run=NAMES,
    numbers=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
    ends_ns=st.lists(st.integers(0, 1 << 62), min_size=1, max_size=50).map(sorted),
)
def test_iterations_round_trip(run: str, numbers: tuple[int, int, int, int], ends_ns: list[int]) -> None:
    seq, first, epoch, dropped = numbers
    message = Iterations(
        run=run, seq=seq, first=first, begin_ns=ends_ns[0], end_ns=packed_ends(*ends_ns), epoch=epoch, dropped=dropped
    )
    arrived = decode(encode(message), Iterations)
    assert arrived == message
    assert arrived.ends_ns().tolist() == ends_ns
    assert arrived.requests_ns() is None
    assert arrived.received_times_ns() is None


def test_requests_and_receipts_round_trip() -> None:
    requests_ns, received_ns = [5_000_000_000, 5_100_000_000], [5_100_000_000, 5_150_000_000]
    message = decoded(
        Iterations,
        end_ns=packed_ends(5_100_000_000, 5_200_000_000),
        counted_by="callback",
        request_ns=packed_ends(*requests_ns),
        received_ns=packed_ends(*received_ns),
    )
    arrived = decode(encode(message), Iterations)
    assert arrived.counted_by == "callback"
    assert list(arrived.requests_ns() or []) == requests_ns
    assert list(arrived.received_times_ns() or []) == received_ns


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_work_round_trips_whatever_it_is(amounts: list[float]) -> None:
    ends = packed_ends(*range(6_000_000_000, 6_000_000_000 + len(amounts)))
    message = Iterations(
        run="r1", seq=0, first=0, begin_ns=0, end_ns=ends, epoch=0, dropped=0, work=pack_work(array("d", amounts))
    )
    arrived = decode(encode(message), Iterations).amounts_of_work()
    assert arrived == pytest.approx(array("d", amounts), nan_ok=True)


@given(
    run=NAMES,
    host=st.text(min_size=0, max_size=256),
    gpus=st.lists(st.text(min_size=1, max_size=96) | st.integers(0, 1023), max_size=64),
    started_at_s=st.floats(0, 1e11),
    reached=st.none() | st.booleans(),
    batch_size=st.none() | st.integers(1, 1 << 31),
)
def test_a_status_round_trips(
    run: str, host: str, gpus: list[str | int], started_at_s: float, reached: bool | None, batch_size: int | None
) -> None:
    message = RankStatus(
        run=run,
        state="running",
        host=host,
        boot_id=host,
        pid=1,
        gpus=gpus,
        world_size=1,
        started_at_s=started_at_s,
        heartbeat_s=10.0,
        batch_size=batch_size,
        reached=reached,
    )
    assert decode(encode(message), RankStatus) == message


@given(run=NAMES, epoch=COUNTS, value=st.floats(-1e18, 1e18), reached=st.booleans())
def test_a_metric_round_trips(run: str, epoch: int, value: float, reached: bool) -> None:
    message = Metric(run=run, epoch=epoch, value=value, reached=reached)
    assert decode(encode(message), Metric) == message


def test_the_ends_are_packed_as_little_endian_int64() -> None:
    assert packed_ends(1, 258) == b"\x01\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0"


@given(st.binary(max_size=300))
@example(b"\x93" * 100_000)
@example(b"[" * 100_000)
@example(b"{" + b'"a":{' * 50_000)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\xc7\x00\x05")
@example(b"\xd6\xff\x00\x00\x00\x00")
def test_arbitrary_bytes_raise_only_decode_errors(payload: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(DecodeError):
            decode(payload, kind)


@given(TREES)
def test_arbitrary_messagepack_and_json_raise_only_decode_errors(tree: object) -> None:
    for kind in KINDS:
        payload = msgpack.packb(tree) if kind.packed else json.dumps(tree, default=repr, skipkeys=True).encode()
        with pytest.raises(DecodeError):
            decode(payload, kind)


@given(st.sampled_from(GOLDEN), st.data())
def test_a_corrupted_message_is_rejected_or_still_valid(golden: tuple[Message, bytes], data: st.DataObject) -> None:
    message, payload = golden
    damaged = bytearray(payload)
    for place in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    _decode_if_valid(bytes(damaged[: data.draw(st.integers(0, len(payload)))]), type(message))


@given(st.sampled_from(KINDS), st.data(), TREES)
def test_a_message_with_one_random_field_is_rejected_or_still_valid(
    kind: type[Message], data: st.DataObject, value: object
) -> None:
    fields = fields_of(kind)
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    payload = msgpack.packb(fields) if kind.packed else json.dumps(fields, default=repr, skipkeys=True).encode()
    _decode_if_valid(payload, kind)


def _decode_if_valid(payload: bytes, kind: type[Message]) -> None:
    """Decode; what is valid can be encoded again, and says the same, as far as its numbers are not rounded."""
    try:
        message = decode(payload, kind)
    except DecodeError:
        return
    told = encode(message)
    assert encode(decode(told, kind)) == told


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unknown_fields_are_ignored_so_that_versions_can_differ(kind: type[Message]) -> None:
    assert decoded(kind, from_the_future={"a": [1]}) == decoded(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_that_is_too_long_is_rejected_unread(kind: type[Message]) -> None:
    with pytest.raises(DecodeError, match="must be at most"):
        decode(b" " * (MAX_MESSAGE_BYTES + 1), kind)


@pytest.mark.parametrize(
    "changes",
    [
        {"end_ns": b""},
        {"end_ns": b"\0" * 7},
        {"end_ns": b"\0" * 8 * (MAX_ITERATIONS + 1)},
        {"end_ns": packed_ends(4_999_999_999)},
        {"end_ns": packed_ends(6_000_000_000, 5_999_999_999)},
        {"end_ns": packed_ends(-1)},
        {"end_ns": "text"},
        {"counted_by": "guess"},
        {"request_ns": packed_ends(5_000_000_000)},
        {"request_ns": packed_ends(4_999_999_999, 5_100_000_000)},
        {"request_ns": packed_ends(5_000_000_000, 5_099_999_999)},
        {"request_ns": packed_ends(5_100_000_001, 5_100_000_002)},
        {"request_ns": packed_ends(5_000_000_000, 5_200_000_002)},
        {"received_ns": packed_ends(5_000_000_000, 5_200_000_002)},
        {"received_ns": b"\0" * 15},
        {"work": b"\0" * 15},
        {"work": b"\0" * 800},
        {"work": "tokens"},
        {"begin_ns": -1},
        {"begin_ns": 1 << 63},
        {"begin_ns": 5.5},
        {"first": -1},
        {"seq": (1 << 53) + 1},
        {"dropped": None},
        {"epoch": "3"},
        {"run": "two words"},
        {"run": "r" * 65},
        {"run": "r1\n"},
        {"run": ""},
    ],
    ids=str,
)
def test_iterations_out_of_bounds_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        decoded(Iterations, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "dead"},
        {"host": "h" * 257},
        {"gpus": ["GPU-1"] * 65},
        {"gpus": [-1]},
        {"gpus": [1.5]},
        {"gpus": [""]},
        {"world_size": 0},
        {"batch_size": 0},
        {"heartbeat_s": 0.0},
        {"work_unit": "u" * 65},
        {"work_unit": ""},
        {"work_unit": "tokens\nroot: "},
        {"total_work": 0.0},
        {"total_work": math.inf},
        {"heartbeat_s": math.nan},
        {"started_at_s": math.inf},
        {"started_at_s": -1.0},
        {"pid": -1},
    ],
    ids=str,
)
def test_a_status_out_of_bounds_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        decoded(RankStatus, **changes)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, "0.5", None])
def test_a_metric_that_is_not_a_finite_number_is_rejected(value: object) -> None:
    with pytest.raises(DecodeError):
        decoded(Metric, value=value)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_sizes": [64]},
        {"batch_sizes": [64, 64]},
        {"batch_sizes": [64, 0]},
        {"iteration_times_s": [0.5]},
        {"iteration_times_s": [0.5, 0.0]},
        {"iteration_times_s": [0.5, -1.0]},
        {"iteration_times_s": [0.5, math.nan]},
        {"iteration_times_s": [0.5, math.inf]},
        {"iteration_times_s": [0.5, 1e7]},
        {"batch_sizes": [*range(1, 258)], "iteration_times_s": [0.5] * 257, "too_large": None},
        {"too_large": 128},
        {"too_large": 0},
        {"batch_size": 256},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_invalid_times_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        decoded(TrialTimes, **changes)


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_invalid_times_cannot_be_constructed(time_s: float) -> None:
    with pytest.raises(ValueError, match="must be finite, and above 0"):
        TrialTimes(run="r1", batch_sizes=[8], iteration_times_s=[time_s])


@pytest.mark.parametrize("untimed", [[0], [8.5], ["8"], [8] * 257, 8])
def test_invalid_untimed_batch_sizes_are_rejected(untimed: object) -> None:
    with pytest.raises(DecodeError):
        decoded(TrialAnswer, untimed=untimed)


@pytest.mark.parametrize("name", sorted(fields_of(Iterations)))
def test_a_missing_field_is_named(name: str) -> None:
    fields = fields_of(Iterations)
    del fields[name]
    with pytest.raises(DecodeError, match=name):
        decode(msgpack.packb(fields), Iterations)
