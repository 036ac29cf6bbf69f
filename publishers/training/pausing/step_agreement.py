"""The agreement of all ranks of a run to stop after the same step: to pause there, or to end their loops.

Ranks wait for each other in every step, so a rank that stops alone stalls all the others within a collective. Here they
agree through the store of their process group, in a thread of their own: no collective, and nothing that the training's
thread would wait for. Rank 0 leads:

    it proposes      stop after step N, a little ahead of where it is
    each rank        puts a hold at N into its gate; its training stops there, and it counts itself in
    rank 0           when all have arrived: go. When a rank was past N already, or did not come in time: abort
    each rank        go: the run is paused until rank 0 says over (or: its loop ends). Abort: it goes on

All ranks run the same program, and what each needs to reach N is only what the others do up to N: so all of them
arrive, unless they do not count alike. Then those that wait go on after `patience_s`, and nothing has happened.
What rank 0 says stands under one key, and each rank reads it at its own pace.
"""

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from publishers.training.pausing.gate import Hold, IterationGate
from publishers.training.run.process_group import Store

IDLE_POLL_S: Final = 0.5
BUSY_POLL_S: Final = 0.05
POLLS_PER_S: Final = 1_000
"""Of all ranks together, at most: the store is one process for all."""
MAX_LATE: Final = 8
"""So often in a row a step is proposed too late for some rank, each time twice as far ahead, before it is given up."""
MAX_ABSENT: Final = 3
"""So often ranks do not arrive at the step before it is given up: each time those that wait lose `patience_s`."""
_NUMBER_BYTES: Final = 5
"""The first number is random: counters of an earlier process group in the same store must not be taken for ours."""
_MAX_SEEN: Final = 10
"""So many looks at the training's progress, 5 s of them, give its rate."""

Kind = Literal["pause", "stop"]
Phase = Literal["proposed", "go", "over"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What rank 0 says: stop after a step, which is `proposed`, agreed on (`go`), or `over`: aborted, or at its end."""

    number: int
    kind: Kind
    step: int
    phase: Phase

    def encode(self) -> str:
        """Return it as it stands in the store."""
        return f"{self.number} {self.kind} {self.step} {self.phase}"

    @classmethod
    def decode(cls, value: bytes) -> "Proposal | None":
        """Return what stands in the store; None where another version of this package has written it."""
        match value.decode("ascii", "replace").split():
            case [number, ("pause" | "stop") as kind, step, ("proposed" | "go" | "over") as phase]:
                return cls(int(number), kind, int(step), phase) if number.isdigit() and step.isdigit() else None
            case _:
                return None


class Keys(NamedTuple):
    """The keys of one training in the store of its process group."""

    prefix: str

    @property
    def proposal(self) -> str:
        """Return the key of what rank 0 says."""
        return f"{self.prefix}/proposal"

    @property
    def stop(self) -> str:
        """Return the key of the counter of ranks that want the run to end."""
        return f"{self.prefix}/stop"

    def member(self, rank: int) -> str:
        """Return the key that a rank sets once it listens."""
        return f"{self.prefix}/member/{rank}"

    def arrived(self, number: int) -> str:
        """Return the key of the counter of ranks, but for rank 0, that stand at the step of a proposal."""
        return f"{self.prefix}/arrived/{number}"

    def late(self, number: int) -> str:
        """Return the key of the counter of ranks, but for rank 0, that were past the step of a proposal."""
        return f"{self.prefix}/late/{number}"


class RankAgreement:
    """One rank's part in the agreement. `advance` is called again and again, by one thread that is not the training's.

    Args:
        gate: the gate of this rank's training.
        store: the store of the process group.
        prefix: of the keys of this training; the same on all ranks, and of no other training of the group.
        rank: this rank.
        world_size: how many ranks there are.
        patience_s: how long a rank waits for the others at the step [s].
        max_pause_s: how long it waits in all [s].
        clock_s: the time [s].

    Attributes:
        is_complete: whether all ranks listen, as far as rank 0 knows.
        fault: why no step can be agreed on any more, in a sentence; "" while it can.
        poll_s: after how long `advance` is to be called again [s].
    """

    def __init__(
        self,
        gate: IterationGate,
        store: Callable[[], Store],
        *,
        prefix: str,
        rank: int,
        world_size: int,
        patience_s: float,
        max_pause_s: float,
        clock_s: Callable[[], float],
    ) -> None:
        self.is_complete = False
        self.fault = ""
        self._gate = gate
        self._store = store
        self._keys = Keys(prefix)
        self._rank = rank
        self._world_size = world_size
        self._patience_s = patience_s
        self._max_pause_s = max_pause_s
        self._clock_s = clock_s
        self.poll_s = self._idle_s = max(IDLE_POLL_S, world_size / POLLS_PER_S)
        self._busy_s = max(BUSY_POLL_S, world_size / POLLS_PER_S)
        self._proposal: Proposal | None = None
        self._hold: Hold | None = None
        self._is_member = self._has_answered = self._has_asked_for_stop = False
        self._was_past = False
        self._arrived_s = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MAX_SEEN)
        self._n_late = self._n_absent = 0

    def advance(self, wish: Kind | None) -> None:
        """Do what is due; it is to be called again after `poll_s`.

        Args:
            wish: what this rank wants the run to do; a pause counts from rank 0 alone, a stop from any.

        Raises:
            Exception: the store fails.
        """
        store = self._store()
        if not self._is_member:
            self._join(store)
        self._seen.append((self._clock_s(), self._gate.n_passed))
        if wish == "stop" and not self._has_asked_for_stop:
            self._has_asked_for_stop = True
            store.add(self._keys.stop, 1)
        if self._rank == 0:
            self._lead(store, "stop" if store.add(self._keys.stop, 0) else wish)
        else:
            self._follow(store)
        is_busy = self._proposal is not None and self._proposal.phase != "over" and not self._gate.is_ended
        self.poll_s = self._busy_s if is_busy else self._idle_s

    def release(self) -> None:
        """Let this rank's training go on: publishing ends here, or the store has failed."""
        if self._hold is not None:
            self._hold.release()

    def _join(self, store: Store) -> None:
        """Take part; what an earlier process group has left in the store is over."""
        if self._rank == 0:
            self._proposal = Proposal(int.from_bytes(os.urandom(_NUMBER_BYTES)), "pause", 0, "over")
            store.set(self._keys.proposal, self._proposal.encode())
        elif store.check([self._keys.proposal]):  # rank 0 proposes nothing before this rank has joined
            self._proposal = Proposal.decode(store.get(self._keys.proposal))
        store.set(self._keys.member(self._rank), "1")
        self._is_member = True

    def _lead(self, store: Store, wish: Kind | None) -> None:
        self.is_complete = self.is_complete or store.check([self._keys.member(n) for n in range(self._world_size)])
        present, hold = self._proposal, self._hold
        if self._gate.is_ended or self.fault or present is None:
            return
        if hold is None or present.phase == "over":
            if wish is not None and self.is_complete:
                self._propose(store, present.number + 1, wish)
        elif present.phase == "go":
            if wish != "pause" or hold.left_ns is not None:
                self._say(store, "over")
                hold.release()
        elif wish != present.kind or hold.left_ns is not None:  # withdrawn; or Ctrl-C, or its patience was over
            self._abort(store, hold)
        else:
            self._decide(store, present, hold)

    def _propose(self, store: Store, number: int, kind: Kind) -> None:
        """Propose a step so far ahead that every rank hears of it before."""
        ahead_s = (2 * self._idle_s + BUSY_POLL_S) * 2**self._n_late
        (then_s, then), (now_s, now) = self._seen[0], self._seen[-1]
        rate_per_s = (now - then) / (now_s - then_s) if now_s > then_s else 0.0
        ahead = 1 + self._n_late + math.ceil(rate_per_s * ahead_s)
        # The hold comes first: another rank may arrive at once.
        proposal = Proposal(number, kind, self._gate.n_passed + ahead, "proposed")
        self._put_hold(proposal)
        store.set(self._keys.proposal, proposal.encode())

    def _decide(self, store: Store, present: Proposal, hold: Hold) -> None:
        """Go where all ranks have arrived; abort where one was late, or does not come."""
        if self._is_past(hold, present.step) or store.add(self._keys.late(present.number), 0):
            self._n_late += 1
            if self._n_late > MAX_LATE:
                self.fault = "some rank is always past the step that was proposed"
            self._abort(store, hold)
        elif hold.arrived_ns is None:
            self._arrived_s = self._clock_s()
        elif store.add(self._keys.arrived(present.number), 0) >= self._world_size - 1:
            self._n_late = self._n_absent = 0
            self._say(store, "go")
            self._go(present, hold)
        elif self._clock_s() - self._arrived_s > self._patience_s / 2:
            self._n_absent += 1
            if self._n_absent >= MAX_ABSENT:
                self.fault = f"not all ranks have come to one step within {self._patience_s / 2:g} s"
            self._abort(store, hold)

    def _abort(self, store: Store, hold: Hold) -> None:
        self._say(store, "over")
        hold.release()

    def _say(self, store: Store, phase: Phase) -> None:
        if self._proposal is not None:
            self._proposal = replace(self._proposal, phase=phase)
            store.set(self._keys.proposal, self._proposal.encode())

    def _follow(self, store: Store) -> None:
        if self._proposal is None and not store.check([self._keys.proposal]):
            return
        said = Proposal.decode(store.get(self._keys.proposal))
        if said is None:
            return
        if self._proposal is None or said.number != self._proposal.number:
            self.release()
            self._put_hold(said)
        self._proposal, hold = said, self._hold
        if hold is None:
            return
        if said.phase == "over":
            hold.release()
        elif said.phase == "go":
            self._go(said, hold)
        elif not self._has_answered:
            self._answer(store, said, hold)

    def _answer(self, store: Store, said: Proposal, hold: Hold) -> None:
        """Count this rank in, once, where it has arrived or comes too late."""
        if self._is_past(hold, said.step):
            self._has_answered = True
            hold.release()
            store.add(self._keys.late(said.number), 1)
        elif hold.arrived_ns is not None:
            self._has_answered = True
            store.add(self._keys.arrived(said.number), 1)

    def _go(self, proposal: Proposal, hold: Hold) -> None:
        """Let the pause begin, or the loop end; only for a rank that stands at the step."""
        if hold.arrived_ns is None or hold.left_ns is not None:
            return
        if proposal.kind == "stop":
            self._gate.is_ended = True
            hold.release()
        else:
            hold.is_confirmed = True

    def _put_hold(self, proposal: Proposal) -> None:
        """Let this rank's training stop after the step of a proposal."""
        self._arrived_s = self._clock_s()
        hold = Hold(proposal.step, patience_s=self._patience_s, max_s=self._max_pause_s)
        if proposal.phase != "proposed":  # it is over already, or began without this rank
            hold.release()
        self._proposal, self._has_answered, self._was_past = proposal, False, False
        self._hold = self._gate.hold = hold

    def _is_past(self, hold: Hold, step: int) -> bool:
        """Return whether the training is past a step without having stopped there.

        At the very step it may be about to stop: it is past if it does not stand there when it is looked at again.
        """
        if hold.arrived_ns is not None or hold.is_due:
            return False
        if hold.is_missed or self._gate.n_passed > step:
            return True
        was_past, self._was_past = self._was_past, self._gate.n_passed == step
        return was_past and self._was_past
