"""What the controller publishes about the energy of one run, heard by its training: the newest record, live values.

The leader's controller sends a record every few seconds while the run goes on, and its last one, which the broker
retains, a few tenths of a second after the last process of the run has said that it is finished.
"""

import math
from typing import Final

from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import KNOWN_EVIDENCE, RunEnergy
from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.connection import Connection
from publishers.training.settings import Settings

_LIVE_FIELDS: Final = ("power_limit_w", "energy_j", "carbon_g", "cost")
_RATIOS: Final = ("saved", "saved_energy", "slowdown")
MIN_POWER_S: Final = 1.0
"""Power is told over so long at least: the last record may follow the one before within milliseconds."""


def known_ratios(record: RunEnergy) -> dict[str, tuple[float, float]]:
    """Return the ratios that may be told: `saved`, `saved_energy`, `slowdown`, as far as there is evidence of each.

    Each with the half-width of its 90 % interval: one without the other is told nowhere.
    """
    if record.evidence not in KNOWN_EVIDENCE:
        return {}
    pairs = {name: (getattr(record, f"{name}_ratio"), getattr(record, f"{name}_ci90_ratio")) for name in _RATIOS}
    return {name: pair for name, pair in pairs.items() if None not in pair}


class RunEnergyFeed:
    """The records of a run's energy. Rank 0 listens from the beginning, other ranks from the first question on.

    Written by the publisher's thread, read by any.

    Args:
        started_at_s: when the publisher started [s, Unix]: a retained last record that is older is of an earlier run of
            this id.

    Attributes:
        latest: the newest record; None before the first.
        power_w: the mean power of the run's GPUs between the newest records, a second apart at least [W]; None before
            there are two.
    """

    def __init__(self, *, started_at_s: float) -> None:
        self._topic = self._run = ""
        self._started_at_s = started_at_s
        self._is_wanted, self._subscribed = False, set[str]()
        self.latest: RunEnergy | None = None
        self.power_w: float | None = None
        self._power_since: RunEnergy | None = None

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        self._topic, self._run = Topics(settings.root).run(settings.key, "energy"), settings.run
        self._is_wanted = self._is_wanted or settings.rank == 0

    def subscribe(self, connection: Connection) -> None:
        """Subscribe, where somebody wants to know."""
        if self._is_wanted and self._topic not in self._subscribed:
            self._subscribed.add(self._topic)
            connection.subscribe(self._topic, self._on_energy)

    def follow(self, key: RunKey, root: str) -> None:
        """Listen to the records of another run from now on: this process is a part of that."""
        topic = Topics(root).run(key, "energy")
        if topic != self._topic:
            self._topic, self._run, self._is_wanted = topic, key.run, True
            self.latest = self.power_w = self._power_since = None

    def want(self) -> None:
        """Let the thread subscribe soon, on whichever rank."""
        self._is_wanted = True

    @property
    def has_ended(self) -> bool:
        """Return whether the controller knows that the run has ended: its sums go on no more."""
        return self.latest is not None and (self.latest.final or self.latest.state != "running")

    def live(self) -> dict[str, float] | None:
        """Return what is known now, by names that say the unit; None before the first record.

        What is not known is left out: carbon or cost without such a signal, savings without evidence.
        """
        record, power_w = self.latest, self.power_w
        if record is None or not record.n_gpus:
            return None
        values = {"power_w": power_w, **{name: getattr(record, name) for name in _LIVE_FIELDS}}
        return {name: value for name, value in values.items() if value is not None} | _live_savings(record)

    def _on_energy(self, payload: bytes) -> None:
        try:
            record = decode(payload, RunEnergy)
        except DecodeError:
            return
        if record.run != self._run or (record.final and (record.time_s or 0.0) < self._started_at_s):
            return
        before = self._power_since or record
        lasted_s, drawn_j = record.duration_s - before.duration_s, record.energy_j - before.energy_j
        if lasted_s >= MIN_POWER_S and drawn_j >= 0:
            self.power_w = round(drawn_j / lasted_s, 2)
        if not 0 <= lasted_s < MIN_POWER_S or self._power_since is None:
            self._power_since = record
        self.latest = record


def _live_savings(record: RunEnergy) -> dict[str, float]:
    """Return what was saved so far, by name, each value with the half-width of its 90 % interval."""
    known = known_ratios(record)
    values: dict[str, float] = {}
    amounts = (
        ("saved_energy", "saved_energy", "j", record.energy_j, record.baseline_energy_j),
        ("saved", "saved_carbon", "g", record.carbon_g, record.baseline_carbon_g),
    )
    for ratio, name, unit, used, baseline in amounts:
        if ratio in known and used is not None and baseline is not None:
            ci90 = known[ratio][1] * baseline
            digits = 1 - math.floor(math.log10(ci90)) if ci90 else 3  # two of the half-width are known, and no further
            values |= {f"{name}_{unit}": round(baseline - used, digits), f"{name}_ci90_{unit}": round(ci90, digits)}
    for name in ("saved", "slowdown"):
        if name in known:
            values[f"{name}_ratio"], values[f"{name}_ci90_ratio"] = known[name]
    return values
