"""The power limits that people have pinned: each holds all GPUs of one run until a time, instead of its plan.

A pin ends at its time, with its run, or when a person releases it. It is an input of the decision, no more: it gives no
GPU to a run, and every rule that keeps a limit from being set keeps a pin from it, too. It survives a restart of the
controller. That it is `done` is said once every GPU has been read back.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Protocol, Self

import msgspec
from msgspec import Meta, Struct

from controller.accounting.ranks import End
from controller.control.gpu_group import GpuGroup
from controller.errors import PinRefusedError
from controller.ports import Blocked, Pin, PinPreview, PinState
from controller.runtime.clock import NS_PER_S, Clock
from publishers.messages.codec import MAX_TIME_S
from publishers.messages.topics import RunKey
from publishers.shared.files.file_writer import FileWriter
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

MAX_PIN_S: Final = 7 * 86_400.0
"""No limit is pinned for longer."""
MAX_WHY: Final = 120
"""Characters of a reason."""
MAX_POWER_W: Final = 1e6
READ_BACK_S: Final = 60.0
"""A pin that is not confirmed within this has failed, for as long as it is not."""
ABSENT_S: Final = 900.0
"""A pin whose run does not come back within this after a restart ends: a later run may have the same id."""
TICK_S: Final = 1.0
MAX_PINS: Final = 256
"""As many as there are runs at a time on one node."""
MAX_ENDED: Final = 256
"""Runs whose last pin is remembered."""
FILE: Final = "pins.json"
VERSION: Final = 1

_LOGGER = logging.getLogger(__name__)


class PinnableRun(Protocol):
    """A run, as its pin sees it."""

    @property
    def ended(self) -> End | None:
        """Return how it has ended; None while it is running."""

    @property
    def started_at_s(self) -> float:
        """Return when its first process here started [Unix s]; 0 while none is known."""

    @property
    def is_led_here(self) -> bool:
        """Return whether this node decides on its limits."""

    @property
    def gpus(self) -> GpuGroup:
        """Return its GPUs on this node."""

    @property
    def pin_fault(self) -> tuple[str, str] | None:
        """Return why its limit cannot be pinned from here, a stable code and a sentence; None where it can."""

    @property
    def limit_reason(self) -> Blocked | None:
        """Return why its GPUs have their limits, or why they are left alone."""

    def preview_pin(self, power_limit_w: float, duration_s: float) -> PinPreview:
        """Return what a pin at a limit [W] for some time [s] would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A pin, when it ends by the monotonic clock at the latest, and when its run was seen last [ns].

    The wall clock may be set back: no pin lasts longer for that than was asked for. `is_restored`: a former controller
    has left it, and its run may have ended since.
    """

    pin: Pin
    ends_ns: int
    asked_ns: int
    seen_ns: int
    is_restored: bool = False


class _Stored(Struct, frozen=True, kw_only=True):
    user: Annotated[str, Meta(min_length=1, max_length=128)]
    job: Annotated[str, Meta(min_length=1, max_length=64)]
    run: Annotated[str, Meta(min_length=1, max_length=64)]
    power_limit_w: Annotated[float, Meta(gt=0, le=MAX_POWER_W)]
    set_at_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
    until_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
    why: Annotated[str, Meta(max_length=MAX_WHY)]
    by: Annotated[str, Meta(max_length=256)]


class _File(Struct, frozen=True, kw_only=True):
    version: int
    pins: Annotated[list[_Stored], Meta(max_length=MAX_PINS)]
    checksum: str = ""


def pin_fault(power_limit_w: float, until_s: float, *, now_s: float) -> tuple[str, str] | None:
    """Return what is wrong with a limit [W] and a time [Unix s] in themselves; None: nothing.

    >>> pin_fault(205.0, 3_600.0, now_s=0.0)
    >>> pin_fault(205.0, 0.0, now_s=3_600.0)[0]
    'bad_time'
    """
    if not 0 < power_limit_w <= MAX_POWER_W:
        return "bad_limit", f"power_limit_w = {power_limit_w:g}: must be above 0, and {MAX_POWER_W:g} W at most"
    left_s = until_s - now_s
    if not 0 < left_s <= MAX_PIN_S:
        which = "has passed" if left_s <= 0 else f"is {left_s / 86_400:.3g} days ahead"
        return "bad_time", f"until_s = {until_s:.0f} {which}: a pin ends within {MAX_PIN_S / 86_400:g} days"
    return None


def why_fault(why: str) -> tuple[str, str] | None:
    """Return what is wrong with a reason; None: nothing.

    >>> why_fault("the room is hot")
    >>> why_fault(" ")[0]
    'bad_why'
    """
    if not why.strip():
        return "bad_why", "why is missing: say it for the people who wait for this run"
    if len(why) > MAX_WHY:
        return "bad_why", f"why has {len(why)} characters: {MAX_WHY} at most"
    return None if why.isprintable() else ("bad_why", "why has a character that is not printable, as a line break")


def sentence_of(seen: PinPreview) -> str:
    """Return what a pin will do, in words.

    >>> sentence_of(PinPreview(power_limit_w=205.0, n_gpus=2, speed_ratio=0.947, power_w=363.0))
    'at 205 W this run goes at 94.7 % of full speed and its 2 GPUs draw 363 W'
    >>> sentence_of(PinPreview(power_limit_w=205.0, n_gpus=1))
    'at 205 W: how fast this run is there, and what its GPU draws, is not known yet'
    """
    gpus = "its GPU draws" if seen.n_gpus == 1 else f"its {seen.n_gpus} GPUs draw"
    if seen.speed_ratio is None or seen.power_w is None:
        return f"at {seen.power_limit_w:g} W: how fast this run is there, and what {gpus}, is not known yet"
    words = (
        f"at {seen.power_limit_w:g} W this run goes at {100 * seen.speed_ratio:.1f} % of full speed and {gpus}"
        f" {seen.power_w:.0f} W"
    )
    if seen.max_slowdown_ratio is None:
        return words
    if seen.slowdown_ratio is None or seen.slowdown_ci90_ratio is None:
        return f"{words}; what that does to its time budget is not known yet"
    ends = [100 * (seen.slowdown_ratio - 1 + sign * seen.slowdown_ci90_ratio) for sign in (-1, 1)]
    allowed, over = 100 * (seen.max_slowdown_ratio - 1), 100 * (seen.slowdown_ratio - seen.max_slowdown_ratio)
    told = f"{words}; when the pin ends, it will have been slower by between {ends[0]:.1f} and {ends[1]:.1f} %"
    budget = (
        f"over its budget of {allowed:.1f} % by {over:.1f} points" if over > 0 else f"its budget is {allowed:.1f} %"
    )
    return f"{told}, {budget}" if over > 0 else f"{told}; {budget}"


class RunPins:
    """The pins of the runs of this node.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

    Args:
        state_dir: where the file of the pins is, or will be made.
        clock: the time.

    Attributes:
        runs: the runs; they ask for their pins from their beginning on, so these are made first.
    """

    def __init__(self, state_dir: Path, *, clock: Clock) -> None:
        self.runs: Mapping[RunKey, PinnableRun] = {}
        self._path = state_dir / FILE
        self._clock = clock
        self._writer = FileWriter(state_dir, what="pins")
        self._held: dict[RunKey, _Held] = {}
        self._ended: RecentDict[RunKey, str] = RecentDict(MAX_ENDED)
        self._is_any = asyncio.Event()

    def __enter__(self) -> Self:
        """Read the pins that a former controller has left."""
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        for key, pin in _read(self._path).items():
            left_s = min(pin.until_s - now_s, pin.until_s - pin.set_at_s, MAX_PIN_S)
            if left_s > 0:
                ends_ns = now_ns + round(left_s * NS_PER_S)
                self._held[key] = _Held(pin=pin, ends_ns=ends_ns, asked_ns=now_ns, seen_ns=now_ns, is_restored=True)
                self._is_any.set()
                _LOGGER.info("%s: %s; it goes on after the restart", key, pin.detail)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    async def run(self) -> None:
        """End pins whose time is over, or whose run has gone, until cancelled."""
        while True:
            await self._is_any.wait()
            for key in list(self._held):
                self._advance(key)
            if not self._held:
                self._is_any.clear()
            await self._clock.sleep_until(self._clock.now_s() + TICK_S)

    def pin(self, key: RunKey, *, power_limit_w: float, until_s: float, why: str, by: str) -> PinState:
        """Hold all GPUs of a run at a limit [W] until a time [Unix s], instead of a pin that it may have.

        Args:
            key: the run.
            power_limit_w: the limit [W].
            until_s: when it ends [Unix s].
            why: for the people who wait for the run.
            by: who asks.

        Raises:
            PinRefusedError: it cannot be held, or not so.
        """
        self._check(key, power_limit_w, until_s)
        if (fault := why_fault(why)) is not None:
            raise PinRefusedError(*fault)
        if key not in self._held and len(self._held) >= MAX_PINS:
            raise PinRefusedError("too_many", f"{MAX_PINS} runs of this node are pinned already")
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        pin = Pin(power_limit_w=power_limit_w, set_at_s=now_s, until_s=until_s, why=why, by=by)
        former, ends_ns = self._held.get(key), now_ns + round((until_s - now_s) * NS_PER_S)
        self._held[key] = _Held(pin=pin, ends_ns=ends_ns, asked_ns=now_ns, seen_ns=now_ns)
        self._is_any.set()
        self._save()
        replaces = "" if former is None else f"; it replaces: {former.pin.detail}"
        _LOGGER.info("%s: %s%s", key, pin.detail, replaces)
        return self.state_of(key)

    def preview(self, key: RunKey, *, power_limit_w: float, until_s: float) -> PinPreview:
        """Return what a pin would do; nothing is changed.

        Raises:
            PinRefusedError: it would be refused.
        """
        run = self._check(key, power_limit_w, until_s)
        seen = run.preview_pin(power_limit_w, until_s - self._clock.now_s())
        return replace(seen, sentence=sentence_of(seen))

    def release(self, key: RunKey, *, why: str, by: str) -> PinState:
        """End the pin of a run, if it has one; its plan decides again.

        Raises:
            PinRefusedError: there is no such run.
        """
        self._run(key)
        if key in self._held:
            self._end(key, f"{printable(by)} ends it: {printable(why) or 'no reason given'}")
        return self.state_of(key)

    def state_of(self, key: RunKey) -> PinState:
        """Return what is known of the pin of a run.

        Raises:
            PinRefusedError: there is no such run.
        """
        run, pin = self._run(key), self.pin_of(key)
        if pin is None:
            return PinState(state="none", ended_because=self._ended.get(key) or "")
        now_ns, wanted = self._clock.monotonic_ns(), run.gpus.requested
        is_wanted = wanted is not None and (wanted.reason, wanted.detail) == ("pinned", pin.detail)
        enforced_w = run.gpus.enforced_w(now_ns) if is_wanted else None
        fault = run.gpus.why_not_ours()
        state = PinState(
            state="done" if enforced_w is not None else "asked",
            power_limit_w=pin.power_limit_w,
            applied_power_limit_w=wanted.power_limit_w if wanted is not None and is_wanted else None,
            enforced_power_limit_w=enforced_w,
            n_gpus=len(run.gpus.uuids),
            set_at_s=pin.set_at_s,
            until_s=pin.until_s,
            why=pin.why,
            by=pin.by,
        )
        if enforced_w is not None:
            return state
        is_late = now_ns - self._held[key].asked_ns > READ_BACK_S * NS_PER_S
        reason = run.limit_reason
        detail = fault.detail if fault is not None else reason.detail if reason is not None and not is_wanted else ""
        return replace(state, state="failed" if fault is not None or is_late else "asked", detail=detail)

    def pin_of(self, key: RunKey) -> Pin | None:
        """Return the pin of a run that is in force now; None: its plan decides."""
        held = self._held.get(key)
        if held is None or self._is_over(held) or self._is_of_former_run(key, held):
            return None
        return held.pin

    def on_run_end(self, key: RunKey) -> None:
        """End the pin of a run that has ended."""
        if key in self._held:
            self._end(key, "the run has ended")

    def _run(self, key: RunKey) -> PinnableRun:
        run = self.runs.get(key)
        if run is None or run.ended is not None:
            raise PinRefusedError("unknown_run", f"{key}: no such run trains on this node now")
        return run

    def _check(self, key: RunKey, power_limit_w: float, until_s: float) -> PinnableRun:
        """Return a run that can be pinned so.

        Raises:
            PinRefusedError: it cannot.
        """
        run = self._run(key)
        fault = pin_fault(power_limit_w, until_s, now_s=self._clock.now_s()) or run.pin_fault
        if fault is not None:
            raise PinRefusedError(*fault)
        return run

    def _is_over(self, held: _Held) -> bool:
        return self._clock.now_s() >= held.pin.until_s or self._clock.monotonic_ns() >= held.ends_ns

    def _is_of_former_run(self, key: RunKey, held: _Held) -> bool:
        """Return whether the run of this name has begun after its pin was set, under a former controller."""
        run = self.runs.get(key)
        return held.is_restored and run is not None and run.started_at_s > held.pin.set_at_s

    def _advance(self, key: RunKey) -> None:
        """End a pin whose time is over, or whose run has gone."""
        held, now_ns, run = self._held[key], self._clock.monotonic_ns(), self.runs.get(key)
        if self._is_over(held):
            self._end(key, "its time is over")
        elif run is not None and run.ended is not None:
            self._end(key, "the run has ended")
        elif self._is_of_former_run(key, held):
            self._end(key, "a later run has its name")
        elif run is not None:
            self._held[key] = replace(held, seen_ns=now_ns, is_restored=held.is_restored and not run.started_at_s)
        elif now_ns - held.seen_ns > ABSENT_S * NS_PER_S:
            self._end(key, f"its run has not trained here for {ABSENT_S / 60:g} min")

    def _end(self, key: RunKey, why: str) -> None:
        held = self._held.pop(key)
        self._ended[key] = why
        lasted_s = max(self._clock.now_s() - held.pin.set_at_s, 0.0)
        _LOGGER.info("%s: the pin at %g W ends after %.3g h: %s", key, held.pin.power_limit_w, lasted_s / 3_600, why)
        self._save()

    def _save(self) -> None:
        pins = {key: held.pin for key, held in self._held.items()}
        self._writer.put({self._path: partial(content_of, pins) if pins else None})


def content_of(pins: Mapping[RunKey, Pin]) -> bytes:
    """Return the content of the file of pins."""
    stored = [
        _Stored(
            **key._asdict(),
            power_limit_w=float(pin.power_limit_w),
            set_at_s=float(pin.set_at_s),
            until_s=float(pin.until_s),
            why=pin.why,
            by=pin.by,
        )
        for key, pin in pins.items()
    ]
    file = _File(version=VERSION, pins=stored)
    checksum = hashlib.blake2b(msgspec.json.encode(file), digest_size=8).hexdigest()
    return msgspec.json.encode(msgspec.structs.replace(file, checksum=checksum)) + b"\n"


def _read(path: Path) -> dict[RunKey, Pin]:
    """Return the pins in a file; none, logged, where it cannot be read or is damaged."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _LOGGER.warning("%s: ignoring unreadable pins; no limit is pinned: %s", path, error)
        return {}


def _decode(content: bytes) -> dict[RunKey, Pin]:
    """Return the pins in the content of a file.

    Raises:
        ValueError, msgspec.MsgspecError: it is damaged, or of another version.
    """
    file = msgspec.json.decode(content, type=_File)
    pins = {
        RunKey(each.user, each.job, each.run): Pin(
            power_limit_w=each.power_limit_w, set_at_s=each.set_at_s, until_s=each.until_s, why=each.why, by=each.by
        )
        for each in file.pins
    }
    if file.version != VERSION or content != content_of(pins):
        raise ValueError(f"version {file.version}, or its checksum is that of another content")
    return pins
