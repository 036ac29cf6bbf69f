"""The power limits that people have pinned: each holds all GPUs of one run until a time, instead of its plan.

A pin ends at its time, with its run, or when a person releases it. One that is set for a GPU holds each run that has
this GPU, with all of its GPUs, since they wait for each other; of several pins of a run the latest one counts. A pin is
an input of the decision, no more: it gives no GPU to a run, and every rule that keeps a limit from being set keeps a
pin from it, too. It survives a restart of the controller. That it is `done` is said once every GPU has been read back.
"""

import asyncio
import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Protocol, Self

import msgspec
from msgspec import Meta, Struct

from controller.accounting.ranks import End
from controller.control.gpu_group import GpuGroup
from controller.errors import PinRefusedError
from controller.ports import (
    MAX_PIN_S,
    MAX_POWER_W,
    MAX_WHY,
    Blocked,
    Pin,
    PinOwner,
    PinPreview,
    PinState,
    pin_fault,
    sentence_of,
    why_fault,
)
from controller.runtime.clock import NS_PER_S, Clock
from publishers.messages.codec import MAX_TIME_S
from publishers.messages.topics import RunKey
from publishers.shared.files.file_writer import FileWriter
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

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
    user: Annotated[str, Meta(max_length=128)] = ""
    job: Annotated[str, Meta(max_length=64)] = ""
    run: Annotated[str, Meta(max_length=64)] = ""
    gpu_uuid: Annotated[str, Meta(max_length=64)] = ""
    power_limit_w: Annotated[float, Meta(gt=0, le=MAX_POWER_W)]
    set_at_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
    until_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
    why: Annotated[str, Meta(max_length=MAX_WHY)]
    by: Annotated[str, Meta(max_length=256)]


class _File(Struct, frozen=True, kw_only=True):
    version: int
    pins: Annotated[list[_Stored], Meta(max_length=MAX_PINS)]
    checksum: str = ""


class RunPins:
    """The pins of the runs of this node.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

    Args:
        state_dir: where the file of the pins is, or will be made.
        clock: the time.
        observes: whether no limit is ever written.

    Attributes:
        runs: the runs; they ask for their pins from their beginning on, so these are made first.
        gpus: the UUIDs of the GPUs.
    """

    def __init__(self, state_dir: Path, *, clock: Clock, observes: bool = False) -> None:
        self.runs: Mapping[RunKey, PinnableRun] = {}
        self.gpus: Collection[str] = ()
        self._observes = observes
        self._path = state_dir / FILE
        self._clock = clock
        self._writer = FileWriter(state_dir, what="pins")
        self._held: dict[PinOwner, _Held] = {}
        self._ended: RecentDict[PinOwner, str] = RecentDict(MAX_ENDED)
        self._is_any = asyncio.Event()

    def __enter__(self) -> Self:
        """Read the pins that a former controller has left."""
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        for owner, pin in _read(self._path).items():
            left_s = min(pin.until_s - now_s, pin.until_s - pin.set_at_s, MAX_PIN_S)
            if left_s > 0:
                ends_ns = now_ns + round(left_s * NS_PER_S)
                self._held[owner] = _Held(pin=pin, ends_ns=ends_ns, asked_ns=now_ns, seen_ns=now_ns, is_restored=True)
                self._is_any.set()
                _LOGGER.info("%s: %s; it goes on after the restart", owner, pin.detail)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    async def run(self) -> None:
        """End pins whose time is over, or whose run has gone, until cancelled."""
        while True:
            await self._is_any.wait()
            for owner in list(self._held):
                self._advance(owner)
            if not self._held:
                self._is_any.clear()
            await self._clock.sleep_until(self._clock.now_s() + TICK_S)

    def gpu_pins(self) -> Mapping[str, PinState]:
        """Return the GPUs that are pinned, by UUID."""
        return {owner: self.state_of(owner) for owner in self._held if isinstance(owner, str) and owner in self.gpus}

    def pin(self, owner: PinOwner, *, power_limit_w: float, until_s: float, why: str, by: str) -> PinState:
        """Hold all GPUs of a run at a limit [W] until a time [Unix s], instead of a pin that it may have.

        Args:
            owner: the run, or a GPU by its UUID: then each run that has it.
            power_limit_w: the limit [W].
            until_s: when it ends [Unix s].
            why: for the people who wait for the run.
            by: who asks.

        Raises:
            PinRefusedError: it cannot be held, or not so.
        """
        self._check(owner, power_limit_w, until_s)
        if (fault := why_fault(why)) is not None:
            raise PinRefusedError(*fault)
        if owner not in self._held and len(self._held) >= MAX_PINS:
            raise PinRefusedError("too_many", f"{MAX_PINS} runs of this node are pinned already")
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        pin = Pin(power_limit_w=power_limit_w, set_at_s=now_s, until_s=until_s, why=why, by=by)
        former, ends_ns = self._held.get(owner), now_ns + round((until_s - now_s) * NS_PER_S)
        self._held[owner] = _Held(pin=pin, ends_ns=ends_ns, asked_ns=now_ns, seen_ns=now_ns)
        self._is_any.set()
        self._save()
        replaces = "" if former is None else f"; it replaces: {former.pin.detail}"
        _LOGGER.info("%s: %s%s", owner, pin.detail, replaces)
        return self.state_of(owner)

    def preview(self, owner: PinOwner, *, power_limit_w: float, until_s: float) -> PinPreview:
        """Return what a pin would do; nothing is changed.

        Raises:
            PinRefusedError: it would be refused.
        """
        run = self._check(owner, power_limit_w, until_s)
        if run is None:
            return PinPreview(power_limit_w=power_limit_w, sentence=f"at {power_limit_w:g} W: no run has this GPU now")
        seen = run.preview_pin(power_limit_w, until_s - self._clock.now_s())
        return replace(seen, sentence=sentence_of(seen))

    def release(self, owner: PinOwner, *, why: str, by: str) -> PinState:
        """End a pin, if there is one; the plan decides again, unless a GPU of the run is pinned.

        Raises:
            PinRefusedError: there is no such run, or no such GPU.
        """
        self._run(owner)
        if owner in self._held:
            self._end(owner, f"{printable(by)} ends it: {printable(why) or 'no reason given'}")
        return self.state_of(owner)

    def state_of(self, owner: PinOwner) -> PinState:
        """Return what is known of a pin; of a run it may be that of a GPU.

        Raises:
            PinRefusedError: there is no such run, or no such GPU.
        """
        run, held = self._run(owner), self._effective(owner)
        if held is None:
            return PinState(state="none", ended_because=self._ended.get(owner) or "")
        pin = held.pin
        state = PinState(
            state="waiting",
            power_limit_w=pin.power_limit_w,
            set_at_s=pin.set_at_s,
            until_s=pin.until_s,
            why=pin.why,
            by=pin.by,
            detail="no run has this GPU now: it has its prior limit",
        )
        return state if run is None else self._state_at(run, held, state)

    def _state_at(self, run: PinnableRun, held: _Held, state: PinState) -> PinState:
        """Return how the pin of a run stands, by what was read back from its GPUs."""
        now_ns, wanted = self._clock.monotonic_ns(), run.gpus.requested
        is_wanted = wanted is not None and (wanted.reason, wanted.detail) == ("pinned", held.pin.detail)
        enforced_w = run.gpus.enforced_w(now_ns) if is_wanted else None
        state = replace(
            state,
            applied_power_limit_w=wanted.power_limit_w if wanted is not None and is_wanted else None,
            enforced_power_limit_w=enforced_w,
            state="asked",
            n_gpus=len(run.gpus.uuids),
            detail="",
        )
        if enforced_w is not None:
            return replace(state, state="done")
        is_late = now_ns - held.asked_ns > READ_BACK_S * NS_PER_S
        fault, reason = run.gpus.why_not_ours(), run.limit_reason
        detail = fault.detail if fault is not None else reason.detail if reason is not None and not is_wanted else ""
        return replace(state, state="failed" if fault is not None or is_late else "asked", detail=detail)

    def pin_of(self, key: RunKey) -> Pin | None:
        """Return the pin of a run that is in force now; None: its plan decides."""
        held = self._effective(key)
        return None if held is None else held.pin

    def on_run_end(self, key: RunKey) -> None:
        """End the pin of a run that has ended."""
        if key in self._held:
            self._end(key, "the run has ended")

    def _effective(self, owner: PinOwner) -> _Held | None:
        """Return the pin that holds a run, or that of a GPU, if it has not ended; of several the latest one."""
        if not self._held:
            return None
        run = None if isinstance(owner, str) else self.runs.get(owner)
        owners = [owner, *(() if run is None else run.gpus.uuids)]
        held = [self._held[each] for each in owners if each in self._held and not self._is_past(each)]
        return max(held, key=lambda each: each.pin.set_at_s, default=None)

    def _run(self, owner: PinOwner) -> PinnableRun | None:
        """Return the run that is meant; None: it is a GPU, and no run has it.

        Raises:
            PinRefusedError: there is no such run, or no such GPU.
        """
        if isinstance(owner, str):
            if owner not in self.gpus:
                raise PinRefusedError("unknown_gpu", f"{owner}: this node has no such GPU")
            runs = self.runs.values()
            return next((run for run in runs if run.ended is None and owner in run.gpus.uuids), None)
        run = self.runs.get(owner)
        if run is None or run.ended is not None:
            raise PinRefusedError("unknown_run", f"{owner}: no such run trains on this node now")
        return run

    def _check(self, owner: PinOwner, power_limit_w: float, until_s: float) -> PinnableRun | None:
        """Return the run that can be pinned so; None: it is a GPU, and no run has it.

        Raises:
            PinRefusedError: it cannot.
        """
        run = self._run(owner)
        fault = pin_fault(power_limit_w, until_s, now_s=self._clock.now_s())
        if fault is None and run is not None:
            fault = run.pin_fault
        elif fault is None and self._observes:
            fault = "observe_mode", "plan.observe: limits are planned, but never written"
        if fault is not None:
            raise PinRefusedError(*fault)
        return run

    def _is_over(self, held: _Held) -> bool:
        return self._clock.now_s() >= held.pin.until_s or self._clock.monotonic_ns() >= held.ends_ns

    def _is_past(self, owner: PinOwner) -> bool:
        return self._is_over(self._held[owner]) or self._is_of_former_run(owner, self._held[owner])

    def _is_of_former_run(self, owner: PinOwner, held: _Held) -> bool:
        """Return whether the run of this name has begun after its pin was set, under a former controller."""
        run = None if isinstance(owner, str) else self.runs.get(owner)
        return held.is_restored and run is not None and run.started_at_s > held.pin.set_at_s

    def _advance(self, owner: PinOwner) -> None:
        """End a pin whose time is over, or whose run has gone."""
        held, now_ns = self._held[owner], self._clock.monotonic_ns()
        run = None if isinstance(owner, str) else self.runs.get(owner)
        if self._is_over(held):
            self._end(owner, "its time is over")
        elif run is not None and run.ended is not None:
            self._end(owner, "the run has ended")
        elif self._is_of_former_run(owner, held):
            self._end(owner, "a later run has its name")
        elif isinstance(owner, str):
            self._held[owner] = replace(held, seen_ns=now_ns)
        elif run is not None:
            self._held[owner] = replace(held, seen_ns=now_ns, is_restored=held.is_restored and not run.started_at_s)
        elif now_ns - held.seen_ns > ABSENT_S * NS_PER_S:
            self._end(owner, f"its run has not trained here for {ABSENT_S / 60:g} min")

    def _end(self, owner: PinOwner, why: str) -> None:
        held = self._held.pop(owner)
        self._ended[owner] = why
        lasted_s = max(self._clock.now_s() - held.pin.set_at_s, 0.0)
        _LOGGER.info("%s: the pin at %g W ends after %.3g h: %s", owner, held.pin.power_limit_w, lasted_s / 3_600, why)
        self._save()

    def _save(self) -> None:
        pins = {owner: held.pin for owner, held in self._held.items()}
        self._writer.put({self._path: partial(content_of, pins) if pins else None})


def content_of(pins: Mapping[PinOwner, Pin]) -> bytes:
    """Return the content of the file of pins."""
    stored = [
        _Stored(
            **({"gpu_uuid": owner} if isinstance(owner, str) else owner._asdict()),
            power_limit_w=float(pin.power_limit_w),
            set_at_s=float(pin.set_at_s),
            until_s=float(pin.until_s),
            why=pin.why,
            by=pin.by,
        )
        for owner, pin in pins.items()
    ]
    file = _File(version=VERSION, pins=stored)
    checksum = hashlib.blake2b(msgspec.json.encode(file), digest_size=8).hexdigest()
    return msgspec.json.encode(msgspec.structs.replace(file, checksum=checksum)) + b"\n"


def _read(path: Path) -> dict[PinOwner, Pin]:
    """Return the pins in a file; none, logged, where it cannot be read or is damaged."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _LOGGER.warning("%s: ignoring unreadable pins; no limit is pinned: %s", path, error)
        return {}


def _decode(content: bytes) -> dict[PinOwner, Pin]:
    """Return the pins in the content of a file.

    Raises:
        ValueError, msgspec.MsgspecError: it is damaged, or of another version.
    """
    file = msgspec.json.decode(content, type=_File)
    pins: dict[PinOwner, Pin] = {
        each.gpu_uuid or RunKey(each.user, each.job, each.run): Pin(
            power_limit_w=each.power_limit_w, set_at_s=each.set_at_s, until_s=each.until_s, why=each.why, by=each.by
        )
        for each in file.pins
    }
    if file.version != VERSION or content != content_of(pins):
        raise ValueError(f"version {file.version}, or its checksum is that of another content")
    return pins
