"""The books of a run on this node: what has become known since the last time is cut into slices, and entered once."""

from collections.abc import Iterator, Sequence

from controller.clock import NS_PER_S, Clock
from controller.ports import EnergyMeter, SignalSource
from controller.run_account import RunAccount, Slice, cut
from controller.run_log import RankLog

METER_PATIENCE = 12
"""A meter that fails is not waited for longer than this part of what iterations are waited for."""
HOLD_BACK_S = 750.0
"""Energy waits so long for the iterations that go with it; after that the time was a pause."""
HOLD_BACK_TICKS = 7_500
"""Nor does it wait longer than so many ticks (750 s at the usual 0.1 s): a meter remembers somewhat more."""


class Bookkeeping:
    """The account of a run, and how far it goes."""

    def __init__(self, *, clock: Clock, signal: SignalSource) -> None:
        self.account = RunAccount()
        self._clock = clock
        self._signal = signal
        self._cut_ns: int | None = None

    def cut(
        self,
        known_ns: tuple[int, int],
        *,
        logs: Sequence[RankLog],
        meters: Sequence[EnergyMeter],
        tick_s: float,
        to_the_end: bool = False,
    ) -> Iterator[Slice]:
        """Yield what has become known since the last cut, oldest first, each once it stands in the account.

        Args:
            known_ns: from when to when the iterations of every rank are known [ns].
            logs: the ranks on this node.
            meters: the GPUs of the run.
            tick_s: how often this is called at least [s].
            to_the_end: wait for nothing more: the run has ended.
        """
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        patience_ns = int(min(HOLD_BACK_S, HOLD_BACK_TICKS * tick_s) * NS_PER_S)
        since_ns, until_ns = known_ns if self._cut_ns is None else (self._cut_ns, known_ns[1])
        if not to_the_end:
            until_ns = max(until_ns, now_ns - patience_ns)
        pieces = cut(
            logs=logs,
            meters=meters,
            since_ns=since_ns,
            until_ns=until_ns,
            patient_from_ns=now_ns - patience_ns // METER_PATIENCE,
            to_the_end=to_the_end,
        )
        history = self._signal.history()
        for piece in pieces:
            self._cut_ns = piece.end_ns
            at_s = now_s - (now_ns - piece.begin_ns) / NS_PER_S
            self.account.add(piece, history.value_at(at_s) if history else None)
            yield piece
