"""What all orders that stand for a time have in common: when they end, and that they outlast the controller.

Such an order is about a run, or about a GPU and each run that has it. It ends at its time, with its run, or when a
person ends it. The wall clock may be set back: none lasts longer for that than was asked for.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from controller.accounting.ranks import End
from controller.control.gpu_group import GpuGroup
from controller.errors import OrderRefusedError
from controller.ports import Blocked
from controller.ports.orders import PinOwner, StandingOrder, why_fault
from controller.runtime.clock import NS_PER_S, Clock
from publishers.messages.topics import RunKey
from publishers.shared.files.file_writer import FileWriter
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

READ_BACK_S: Final = 60.0
"""An order that is not confirmed within this has failed, for as long as it is not."""
ABSENT_S: Final = 900.0
"""An order whose run does not come back within this after a restart ends: a later run may have the same id."""
TICK_S: Final = 1.0
MAX_ORDERS: Final = 256
"""As many as there are runs at a time on one node."""
MAX_ENDED: Final = 256
"""Runs whose last order is remembered."""
VERSION: Final = 1
ENDLESS_NS: Final = 1 << 62

_LOGGER = logging.getLogger(__name__)

OrderT = TypeVar("OrderT", bound=StandingOrder)


class OrderedRun(Protocol):
    """A run, as orders see it."""

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
    def order_fault(self) -> tuple[str, str] | None:
        """Return why its limit cannot be decided from here, a stable code and a sentence; None where it can."""

    @property
    def limit_reason(self) -> Blocked | None:
        """Return why its GPUs have their limits, or why they are left alone."""


RunT = TypeVar("RunT", bound=OrderedRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Generic[OrderT]):
    """An order, when it ends by the monotonic clock at the latest, and when its run was seen last [ns].

    `is_restored`: a former controller has left it, and its run may have ended since.
    """

    order: OrderT
    ends_ns: int
    asked_ns: int
    seen_ns: int
    is_restored: bool = False


class _Owner(Struct, frozen=True, kw_only=True):
    user: Annotated[str, Meta(max_length=128)] = ""
    job: Annotated[str, Meta(max_length=64)] = ""
    run: Annotated[str, Meta(max_length=64)] = ""
    gpu_uuid: Annotated[str, Meta(max_length=64)] = ""


class StandingOrders(Generic[OrderT, RunT]):
    """The orders of one kind.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

    Args:
        state_dir: where the file of the orders is, or will be made.
        kind: the record of an order.
        name: what orders of this kind are, in the plural: the name of their file, too.
        clock: the time.

    Attributes:
        runs: the runs; they ask for their orders from their beginning on, so these are made first.
    """

    def __init__(self, state_dir: Path, *, kind: type[OrderT], name: str, clock: Clock) -> None:
        self.runs: Mapping[RunKey, RunT] = {}
        self._kind, self._name = kind, name
        self._path = state_dir / f"{name}.json"
        self._clock = clock
        self._writer = FileWriter(state_dir, what=name)
        self._held: dict[PinOwner, Held[OrderT]] = {}
        self._ended: RecentDict[PinOwner, str] = RecentDict(MAX_ENDED)
        self._is_any = asyncio.Event()

    def __enter__(self) -> Self:
        """Read the orders that a former controller has left."""
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        for place, (owner, order) in enumerate(self._read().items(), -MAX_ORDERS):  # the last comes last
            if order.until_s is None or min(order.until_s - now_s, order.until_s - order.set_at_s) > 0:
                ends_ns = self._ends_ns(order)
                self._held[owner] = Held(
                    order=order, ends_ns=ends_ns, asked_ns=now_ns + place, seen_ns=now_ns, is_restored=True
                )
                self._is_any.set()
                _LOGGER.info("%s: %s; it goes on after the restart", owner, order.detail)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    async def run(self) -> None:
        """End orders whose time is over, or whose run has gone, until cancelled."""
        while True:
            await self._is_any.wait()
            for owner in list(self._held):
                self._advance(owner)
            if not self._held:
                self._is_any.clear()
            await self._clock.sleep_until(self._clock.now_s() + TICK_S)

    def on_run_end(self, key: RunKey) -> None:
        """End the order of a run that has ended."""
        if key in self._held:
            self._end(key, "the run has ended")

    def _put(self, owner: PinOwner, order: OrderT) -> None:
        """Take an order, in place of the one that its owner may have.

        Raises:
            OrderRefusedError: its reason is none, or there are too many.
        """
        if (fault := why_fault(order.why)) is not None:
            raise OrderRefusedError(*fault)
        if owner not in self._held and len(self._held) >= MAX_ORDERS:
            raise OrderRefusedError("too_many", f"this node has {MAX_ORDERS} {self._name} already")
        former, now_ns = self._held.pop(owner, None), self._clock.monotonic_ns()
        self._held[owner] = Held(order=order, ends_ns=self._ends_ns(order), asked_ns=now_ns, seen_ns=now_ns)
        self._is_any.set()
        self._save()
        replaces = "" if former is None else f"; it replaces: {former.order.detail}"
        _LOGGER.info("%s: %s%s", owner, order.detail, replaces)

    def _release(self, owner: PinOwner, *, why: str, by: str) -> None:
        """End an order, if there is one."""
        if owner in self._held:
            self._end(owner, f"{printable(by)} ends it: {printable(why) or 'no reason given'}")

    def _in_force(self, owner: PinOwner) -> Held[OrderT] | None:
        """Return the order of an owner, if it has not ended."""
        held = self._held.get(owner)
        return None if held is None or self._is_over(held) or self._is_of_former_run(owner, held) else held

    def _run_of(self, owner: PinOwner) -> RunT | None:
        return None if isinstance(owner, str) else self.runs.get(owner)

    def _running(self, key: RunKey) -> RunT:
        """Return a run that has not ended.

        Raises:
            OrderRefusedError: there is none.
        """
        run = self.runs.get(key)
        if run is None or run.ended is not None:
            raise OrderRefusedError("unknown_run", f"{key}: no such run trains on this node now")
        return run

    def _is_late(self, held: Held[OrderT]) -> bool:
        """Return whether an order should have been read back by now."""
        return self._clock.monotonic_ns() - held.asked_ns > READ_BACK_S * NS_PER_S

    def _ends_ns(self, order: OrderT) -> int:
        """Return when an order ends by the monotonic clock, whatever becomes of the other one [ns]."""
        if order.until_s is None:
            return ENDLESS_NS
        left_s = min(order.until_s - self._clock.now_s(), order.until_s - order.set_at_s)
        return self._clock.monotonic_ns() + round(left_s * NS_PER_S)

    def _is_over(self, held: Held[OrderT]) -> bool:
        until_s = held.order.until_s
        is_past = until_s is not None and self._clock.now_s() >= until_s
        return is_past or self._clock.monotonic_ns() >= held.ends_ns

    def _is_of_former_run(self, owner: PinOwner, held: Held[OrderT]) -> bool:
        """Return whether the run of this name has begun after its order was set, under a former controller."""
        run = self._run_of(owner)
        return held.is_restored and run is not None and run.started_at_s > held.order.set_at_s

    def _advance(self, owner: PinOwner) -> None:
        """End an order whose time is over, or whose run has gone."""
        held, now_ns, run = self._held[owner], self._clock.monotonic_ns(), self._run_of(owner)
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
        order = self._held.pop(owner).order
        self._ended[owner] = why
        lasted_s = max(self._clock.now_s() - order.set_at_s, 0.0)
        _LOGGER.info("%s: %s: this ends after %.3g h: %s", owner, order.detail, lasted_s / 3_600, why)
        self._save()

    def _save(self) -> None:
        orders = {owner: held.order for owner, held in self._held.items()}
        self._writer.put({self._path: partial(content_of, self._name, orders) if orders else None})

    def _read(self) -> dict[PinOwner, OrderT]:
        """Return the orders in the file; none, logged, where it cannot be read or is damaged."""
        try:
            return self._decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: ignoring unreadable %s; none is in force: %s", self._path, self._name, error)
            return {}

    def _decode(self, content: bytes) -> dict[PinOwner, OrderT]:
        """Return the orders in the content of a file.

        Raises:
            ValueError, msgspec.MsgspecError: it is damaged, or of another version.
        """
        file = msgspec.json.decode(content, type=dict[str, Any])
        if file.get("version") != VERSION or file.get("checksum") != _checksum(file):
            raise ValueError("it is of another version, or its checksum is that of another content")
        stored = msgspec.convert(file.get(self._name), type=list[dict[str, Any]])
        return {_owner_of(each): msgspec.convert(each, type=self._kind) for each in stored[:MAX_ORDERS]}


def content_of(name: str, orders: Mapping[PinOwner, StandingOrder]) -> bytes:
    """Return the content of the file of some orders."""
    stored = [
        {key: float(value) if type(value) is int else value for key, value in msgspec.to_builtins(order).items()}
        | msgspec.to_builtins(_Owner(**({"gpu_uuid": owner} if isinstance(owner, str) else owner._asdict())))
        for owner, order in orders.items()
    ]
    file = {"version": VERSION, name: stored, "checksum": ""}
    return msgspec.json.encode(file | {"checksum": _checksum(file)}) + b"\n"


def _checksum(file: dict[str, Any]) -> str:
    """Return the checksum of all that is in a file, also of what a newer release has added."""
    return hashlib.blake2b(msgspec.json.encode(file | {"checksum": ""}), digest_size=8).hexdigest()


def _owner_of(stored: dict[str, Any]) -> PinOwner:
    owner = msgspec.convert(stored, type=_Owner)
    return owner.gpu_uuid or RunKey(owner.user, owner.job, owner.run)
