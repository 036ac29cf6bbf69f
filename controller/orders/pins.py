"""The power limits that people have pinned: each holds all GPUs of one run until a time, instead of its plan.

A pin ends at its time, with its run, or when a person releases it. One that is set for a GPU holds each run that has
this GPU, with all of its GPUs, since they wait for each other. Of several pins of a run the latest one counts, but an
operator's before any of the user whose run it is, who can neither replace nor release it. A pin is an input of the
decision, no more: it gives no GPU to a run, and every rule that keeps a limit from being set keeps a pin from it, too.
It survives a restart of the controller. That it is `done` is said once every GPU has been read back.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from controller.errors import OrderRefusedError
from controller.orders.standing import Held, OrderedRun, StandingOrders
from controller.ports.orders import MAX_POWER_W, Pin, PinOwner, PinPreview, PinState, pin_fault, sentence_of_pin
from controller.runtime.clock import Clock
from publishers.messages.topics import RunKey


class PinnableRun(OrderedRun, Protocol):
    """A run, as its pin sees it."""

    def preview_pin(self, power_limit_w: float, duration_s: float) -> PinPreview:
        """Return what a pin at a limit [W] for some time [s] would do."""


class RunPins(StandingOrders[Pin, PinnableRun]):
    """The pins of the runs of this node.

    Args:
        state_dir: where the file of the pins is, or will be made.
        clock: the time.
        observes: whether no limit is ever written.

    Attributes:
        gpus: the UUIDs of the GPUs.
    """

    def __init__(self, state_dir: Path, *, clock: Clock, observes: bool = False) -> None:
        super().__init__(state_dir, kind=Pin, name="pins", clock=clock)
        self.gpus: Collection[str] = ()
        self._observes = observes

    def gpu_pins(self) -> Mapping[str, PinState]:
        """Return the GPUs that are pinned, by UUID."""
        return {owner: self.state_of(owner) for owner in self._held if isinstance(owner, str) and owner in self.gpus}

    def pin(
        self,
        owner: PinOwner,
        *,
        power_limit_w: float | None,
        until_s: float,
        why: str,
        by: str,
        by_owner: bool = False,
    ) -> PinState:
        """Hold all GPUs of a run at a limit [W] until a time [Unix s], instead of a pin that it may have.

        Args:
            owner: the run, or a GPU by its UUID: then each run that has it.
            power_limit_w: the limit [W]; None: the prior limit.
            until_s: when it ends [Unix s].
            why: for the people who wait for the run.
            by: who asks.
            by_owner: whether that is the user whose run it is.

        Raises:
            OrderRefusedError: it cannot be held, or not so.
        """
        self._check(owner, power_limit_w, until_s, by_owner=by_owner)
        pin = Pin(
            power_limit_w=power_limit_w,
            set_at_s=self._clock.now_s(),
            until_s=until_s,
            why=why,
            by=by,
            gpu_uuid=owner if isinstance(owner, str) else "",
            by_owner=by_owner,
        )
        self._put(owner, pin)
        return self.state_of(owner)

    def preview(
        self, owner: PinOwner, *, power_limit_w: float | None, until_s: float, by_owner: bool = False
    ) -> PinPreview:
        """Return what a pin would do; nothing is changed.

        Raises:
            OrderRefusedError: it would be refused.
        """
        run = self._check(owner, power_limit_w, until_s, by_owner=by_owner)
        if run is None:
            limit = "its prior limit" if power_limit_w is None else f"{power_limit_w:g} W"
            words = f"no run has this GPU now; each that has it until then is held at {limit}, with all of its GPUs"
            return PinPreview(power_limit_w=power_limit_w, sentence=words)
        seen = run.preview_pin(MAX_POWER_W if power_limit_w is None else power_limit_w, until_s - self._clock.now_s())
        return replace(seen, sentence=sentence_of_pin(seen))

    def release(self, owner: PinOwner, *, why: str, by: str, by_owner: bool = False) -> PinState:
        """End a pin, if there is one; the plan decides again, unless a GPU of the run is pinned.

        Raises:
            OrderRefusedError: there is no such run, or no such GPU, or an operator has pinned it, and a user asks.
        """
        self._pinnable(owner)
        if by_owner:
            _check_yields(self._in_force(owner))
        self._release(owner, why=why, by=by)
        return self.state_of(owner)

    def state_of(self, owner: PinOwner) -> PinState:
        """Return what is known of a pin; of a run it may be that of a GPU.

        Raises:
            OrderRefusedError: there is no such run, or no such GPU.
        """
        run, held = self._pinnable(owner), self._effective(owner)
        if held is None:
            return PinState(state="none", ended_because=self._ended.get(owner) or "")
        pin = held.order
        state = PinState(
            state="waiting",
            power_limit_w=pin.power_limit_w,
            set_at_s=pin.set_at_s,
            until_s=pin.until_s,
            why=pin.why,
            by=pin.by,
            gpu_uuid=pin.gpu_uuid,
            detail="no run has this GPU now: it has its prior limit",
        )
        return state if run is None else self._state_at(run, held, state)

    def _state_at(self, run: PinnableRun, held: Held[Pin], state: PinState) -> PinState:
        """Return how the pin of a run stands, by what was read back from its GPUs."""
        now_ns, wanted = self._clock.monotonic_ns(), run.gpus.requested
        is_wanted = wanted is not None and (wanted.reason, wanted.detail) == ("pinned", held.order.detail)
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
        fault, reason = run.gpus.why_not_ours(), run.limit_reason
        detail = fault.detail if fault is not None else reason.detail if reason is not None and not is_wanted else ""
        return replace(state, state="failed" if fault is not None or self._is_late(held) else "asked", detail=detail)

    def pin_of(self, key: RunKey) -> Pin | None:
        """Return the pin of a run that is in force now; None: its plan decides."""
        held = self._effective(key)
        return None if held is None else held.order

    def _effective(self, owner: PinOwner) -> Held[Pin] | None:
        """Return the pin that holds a run, or that of a GPU, if it has not ended; of several the operators' latest."""
        if not self._held:
            return None
        run = self._run_of(owner)
        owners = [owner, *(() if run is None else run.gpus.uuids)]
        held = [each for each in map(self._in_force, owners) if each is not None]
        return max(held, key=lambda each: (not each.order.by_owner, each.asked_ns), default=None)

    def _pinnable(self, owner: PinOwner) -> PinnableRun | None:
        """Return the run that is meant; None: it is a GPU, and no run has it.

        Raises:
            OrderRefusedError: there is no such run, or no such GPU.
        """
        if isinstance(owner, str):
            if owner not in self.gpus:
                raise OrderRefusedError("unknown_gpu", f"{owner}: this node has no such GPU")
            runs = self.runs.values()
            return next((run for run in runs if run.ended is None and owner in run.gpus.uuids), None)
        return self._running(owner)

    def _check(
        self, owner: PinOwner, power_limit_w: float | None, until_s: float, *, by_owner: bool
    ) -> PinnableRun | None:
        """Return the run that can be pinned so; None: it is a GPU, and no run has it.

        Raises:
            OrderRefusedError: it cannot.
        """
        run = self._pinnable(owner)
        fault = pin_fault(power_limit_w, until_s, now_s=self._clock.now_s())
        if fault is None and run is not None:
            fault = run.order_fault
        elif fault is None and self._observes:
            fault = "observe_mode", "plan.observe: limits are planned, but never written"
        if fault is not None:
            raise OrderRefusedError(*fault)
        if by_owner:
            _check_yields(self._effective(owner))
        return run


def _check_yields(held: Held[Pin] | None) -> None:
    """Refuse what would change a pin that does not yield to the user whose run it is.

    Raises:
        OrderRefusedError: an operator has set it.
    """
    if held is not None and not held.order.by_owner:
        raise OrderRefusedError("pinned_by_operator", f"{held.order.detail}: an operator's pin yields to no user's")
