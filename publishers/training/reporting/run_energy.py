"""What the controller publishes about the energy of one run, heard by its training: the newest record, live values.

The leader's controller sends a record every few seconds while the run goes on, and its last one, which the broker
retains, a few tenths of a second after the last process of the run has said that it is finished.
"""

from typing import Final

from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import Topics
from publishers.mqtt.connection import Connection
from publishers.training.settings import Settings

_LIVE_FIELDS: Final = ("power_limit_w", "energy_j", "carbon_g", "cost", "saved_ratio", "slowdown_ratio")
_WITHOUT_SAVING: Final = frozenset({"saved_ratio", "slowdown_ratio"})
PROFILING: Final = frozenset({"profiling", "profiling_paused", "waiting_for_ranks"})
"""Reasons of a limit before there is a plan: what is compared with the baseline then is noise."""


class RunEnergyFeed:
    """The records of a run's energy. Rank 0 listens from the beginning, other ranks from the first question on.

    Written by the publisher's thread, read by any.

    Args:
        started_at_s: when the publisher started [s, Unix]: a retained last record that is older is of an earlier run of
            this id.

    Attributes:
        latest: the newest record; None before the first.
        power_w: the mean power of the run's GPUs between the two newest records [W]; None before the second.
    """

    def __init__(self, *, started_at_s: float) -> None:
        self._topic = ""
        self._started_at_s = started_at_s
        self._is_wanted = self._is_subscribed = False
        self.latest: RunEnergy | None = None
        self.power_w: float | None = None

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        self._topic = Topics(settings.root).run(settings.key, "energy")
        self._is_wanted = self._is_wanted or settings.rank == 0

    def subscribe(self, connection: Connection) -> None:
        """Subscribe, where somebody wants to know."""
        if self._is_wanted and not self._is_subscribed:
            self._is_subscribed = True
            connection.subscribe(self._topic, self._on_energy)

    def want(self) -> None:
        """Let the thread subscribe soon, on whichever rank."""
        self._is_wanted = True

    @property
    def has_ended(self) -> bool:
        """Return whether the controller knows that the run has ended: its sums go on no more."""
        return self.latest is not None and (self.latest.final or self.latest.state != "running")

    def live(self) -> dict[str, float] | None:
        """Return what is known now, by names that say the unit; None before the first record.

        What is not known is left out: carbon or cost without such a signal, savings before there is a plan.
        """
        record, power_w = self.latest, self.power_w
        if record is None or not record.n_gpus:
            return None
        is_compared = record.baseline_energy_j is not None and record.reason not in PROFILING
        values = {} if power_w is None else {"power_w": power_w}
        for name in _LIVE_FIELDS:
            value = getattr(record, name)
            if value is not None and (is_compared or name not in _WITHOUT_SAVING):
                values[name] = value
        if is_compared and record.baseline_energy_j:
            values["saved_energy_j"] = round(record.baseline_energy_j - record.energy_j, 1)
        if is_compared and record.baseline_carbon_g is not None and record.carbon_g is not None:
            values["saved_carbon_g"] = round(record.baseline_carbon_g - record.carbon_g, 3)
        return values

    def _on_energy(self, payload: bytes) -> None:
        try:
            record = decode(payload, RunEnergy)
        except DecodeError:
            return
        if record.final and (record.time_s or 0.0) < self._started_at_s:
            return
        before = self.latest
        if before is not None and record.duration_s > before.duration_s and record.energy_j >= before.energy_j:
            drawn_j = record.energy_j - before.energy_j
            self.power_w = round(drawn_j / (record.duration_s - before.duration_s), 2)
        self.latest = record
