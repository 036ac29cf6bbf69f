"""The counterfactual: what the same work would have used at the top limit, in the hours in which it would have run.

An unthrottled twin of the run does the same work. Its clock is its own: it is faster, so that it does the work of each
hour earlier, when the signal was another. By the run's books, and the ratios of its limits l, the block of an hour
takes the twin

    sum over l of active_s(l) * rate_ratio(l), and the pauses of its own, as they were        [s]
    sum over l of energy_j(l) * energy_ratio(l), and the energy of these pauses               [J]

and the blocks follow one another from the run's start. It waits where the run was not there, and not where the run was
asked to wait. Work costs its energy times the mean of the signal over it, and so do pauses. The twin has done
the work before the run, so that the signal is known. Ratios from paired looks cancel what wanders in the job; and since
the books hold what was measured, the baseline is computed anew, as a whole, with the newest ratios and values.

What was saved has parts, which add up to it:

- following the grid: a mix of two limits, blind to the signal, with the plan's mean rate in the plan's time, costs so
  much more by the curve than the plan does; scaled from the curve to what was measured. It does not wait where the run
  was asked to, by its plan or by a person, and so does its work sooner;
- looks, and the first pass: what they cost more than the blind mix would have needed for their work in the same hours;
- a better limit: the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from policies.savings.books import Books, Purpose
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import SAME_POINT_W
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import Values

SHORT_S: Final = 1.0
"""The mean of the signal is taken over so long at least: a block may have energy and no duration."""
MIN_PLANNED_S: Final = 1_800.0
"""What a pin costs is told by at least so much time at the plan's limits before it."""
SAME_RATIO: Final = 1e-9
"""Rates closer than this are equal."""
MAX_MIXES: Final = 65_536
"""So many mixes of two limits are weighed at once at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a run has saved, and of what; energies are those of GPUs, host and PUE as they were given.

    Attributes:
        energy_j, duration_s: of the run [J], [s].
        signal_energy: ∫ c·P dt of the run [J times the signal's unit]; without a signal c is 1.
        baseline_energy_j, baseline_duration_s, baseline_signal_energy: the same, of the twin.
        following_signal_energy, looks_signal_energy, first_pass_signal_energy: what following the grid, looks and the
            first pass have saved, in the unit of `signal_energy`; less than 0 is a cost.
    """

    energy_j: float
    duration_s: float
    signal_energy: float
    baseline_energy_j: float
    baseline_duration_s: float
    baseline_signal_energy: float
    following_signal_energy: float = 0.0
    looks_signal_energy: float = 0.0
    first_pass_signal_energy: float = 0.0

    def plus(self, other: "Saving") -> "Saving":
        """Return what two parts of a run have saved together."""
        names = (each.name for each in fields(self))
        return Saving(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def saved_ratio(self) -> float:
        """Return the share of the baseline that was saved: the sum of the four parts."""
        return self.better_limit_ratio + self.following_ratio + self.looks_ratio + self.first_pass_ratio

    @property
    def better_limit_ratio(self) -> float:
        """Return the share that the better limit has saved: what the other parts have not."""
        others = self.following_ratio + self.looks_ratio + self.first_pass_ratio
        return self._baseline_ratio(self.baseline_signal_energy - self.signal_energy) - others

    @property
    def following_ratio(self) -> float:
        """Return the share that following the grid has saved."""
        return self._baseline_ratio(self.following_signal_energy)

    @property
    def looks_ratio(self) -> float:
        """Return the share that looks have saved: they cost."""
        return self._baseline_ratio(self.looks_signal_energy)

    @property
    def first_pass_ratio(self) -> float:
        """Return the share that the first pass has saved: it costs, mostly."""
        return self._baseline_ratio(self.first_pass_signal_energy)

    @property
    def measuring_ratio(self) -> float:
        """Return the share that looks and the first pass have saved: measuring costs, mostly."""
        return self.looks_ratio + self.first_pass_ratio

    @property
    def saved_energy_ratio(self) -> float:
        """Return the share of the baseline's energy that was saved."""
        return 1 - self.energy_j / self.baseline_energy_j if self.baseline_energy_j > 0 else 0.0

    @property
    def slowdown_ratio(self) -> float:
        """Return how many times as long as its twin the run took."""
        return self.duration_s / self.baseline_duration_s if self.baseline_duration_s > 0 else 1.0

    def _baseline_ratio(self, signal_energy: float) -> float:
        """Return a share of the baseline; 0 of a baseline that is not above 0."""
        return signal_energy / self.baseline_signal_energy if self.baseline_signal_energy > 0 else 0.0


NOTHING_SAVED: Final = Saving(**dict.fromkeys((each.name for each in fields(Saving)), 0.0))
"""That of a run that did nothing: its ratios are those of one that saved nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """The baselines of one run under d sets of ratios, each of shape (d,).

    Attributes:
        energy_j, duration_s: [J], [s].
        signal_energy: [J times the signal's unit].
    """

    energy_j: Values
    duration_s: Values
    signal_energy: Values


class Counterfactual:
    """A run's books beside its twin at the top limit.

    Args:
        books: of the run.
        ratios: of the limits of the curve, those from the curve alone included. Between two of them they are
            interpolated, beyond them the nearest holds; of a run without any, the twin does what the run did.
        top_power_limit_w: the top limit, whose ratios are 1 [W].
        signal: the newest values, from the run's start on. A missing one is replaced by the last before it, and before
            any by the first. None, or no value at all: plain energy counts.
        host_power_w: what the rest of the machine draws all the time [W].
        pue: what the building draws per watt of the machine.
        ahead_s: how far ahead of the run its twin is when the books begin: that of an earlier part has gained it [s].

    Attributes:
        known: the ratios of each known limit, ascending, the top included.

    Raises:
        ValueError: the books are empty.
    """

    def __init__(
        self,
        books: Books,
        ratios: Sequence[LimitRatios],
        *,
        top_power_limit_w: float,
        signal: Signal | None,
        host_power_w: float = 0.0,
        pue: float = 1.0,
        ahead_s: float = 0.0,
    ) -> None:
        if not books.slots:
            raise ValueError("the books are empty: nothing has run yet")
        self.known = _with_top(ratios, top_power_limit_w)
        self.top_power_limit_w = top_power_limit_w
        self._host_power_w, self._pue = host_power_w, pue
        slots = books.slots
        limits_w = sorted({use.power_limit_w for slot in slots for use in slot.uses})
        columns = {limit_w: number for number, limit_w in enumerate(limits_w)}
        self._active_s = np.zeros((len(Purpose), len(slots), len(limits_w)))
        self._energy_j = np.zeros_like(self._active_s)
        for row, slot in enumerate(slots):
            for use in slot.uses:
                where = _PURPOSES.index(use.purpose), row, columns[use.power_limit_w]
                self._active_s[where] += use.active_s
                self._energy_j[where] += use.energy_j
        self._limits_w = np.array(limits_w)
        self._weights = _interpolation(np.array([each.power_limit_w for each in self.known]), self._limits_w)
        # Times count from the twin's start: Unix time would cost seven digits.
        origin_s = slots[0].begins_s - ahead_s
        self._begins_s = np.array([slot.begins_s - origin_s for slot in slots])
        self._spans_s = np.array([slot.ends_s - slot.begins_s for slot in slots])
        self._pauses_s = np.array([slot.pause_s for slot in slots])
        self._pauses_j = np.array([slot.pause_energy_j for slot in slots])
        self._asked_s = np.array([slot.asked_pause_s for slot in slots])
        self._asked_j = np.array([slot.asked_pause_energy_j for slot in slots])
        lasts_s = slots[-1].ends_s - origin_s
        self._knots = _integral(signal, origin_s=origin_s, until_s=2 * lasts_s + SHORT_S)
        self._values = self._means(self._begins_s, self._active_s.sum(axis=(0, 2)))

    @property
    def known_ratios(self) -> tuple[Values, Values]:
        """Return the rates and the energies of the known limits, both of shape (1, n_known)."""
        rates, energies = ([getattr(each, f"{name}_ratio") for each in self.known] for name in ("rate", "energy"))
        return np.array([rates]), np.array([energies])

    @property
    def is_unchanged(self) -> bool:
        """Return whether the run is its own twin: it was never below the top limit, nor asked to wait."""
        return self.is_at_top and not self._asked_s.any()

    @property
    def is_at_top(self) -> bool:
        """Return whether the run has never iterated below the top limit."""
        is_below = self._limits_w < self.top_power_limit_w - SAME_POINT_W
        return not self._active_s[..., is_below].any()

    def twins(self, rate_ratios: Values, energy_ratios: Values) -> Twins:
        """Return the twin under each set of ratios of the known limits, both of shape (d, n_known)."""
        active_s, energy_j = self._active_s.sum(axis=0), self._energy_j.sum(axis=0)
        works_s = active_s @ (rate_ratios @ self._weights.T).T
        works_j = energy_j @ (energy_ratios @ self._weights.T).T
        rests_s = np.maximum(self._spans_s - active_s.sum(axis=1) - self._asked_s, 0.0)[:, None]
        waits_s = np.diff(self._begins_s + self._spans_s, prepend=self._begins_s[0]) - self._spans_s
        ends_s = np.cumsum(np.maximum(waits_s, 0.0)[:, None] + works_s + rests_s, axis=0)
        works_j = self._pue * (works_j + self._host_power_w * works_s)
        pauses_j = (self._pue * (self._pauses_j + self._host_power_w * self._pauses_s))[:, None]
        signal_energy = self._means(ends_s - rests_s - works_s, works_s) * works_j
        has_paused = pauses_j[:, 0] != 0  # in most slots nothing was used in pauses, so that their value is not asked
        begins_s, rests_s = (ends_s - rests_s)[has_paused], rests_s[has_paused]
        signal_energy[has_paused] += self._means(begins_s, rests_s) * pauses_j[has_paused]
        return Twins(
            energy_j=(works_j + pauses_j).sum(axis=0),
            duration_s=(works_s + self._pauses_s[:, None]).sum(axis=0),
            signal_energy=signal_energy.sum(axis=0),
        )

    def parts(self, rate_ratios: Values, energy_ratios: Values) -> Values:
        """Return what following, looks and first pass have saved under each set of ratios of the known limits.

        A pinned limit is none of the plan's doing: what it saves or costs stays with the better limit.

        The ratios have the shape (d, n_known), what is returned (d, 3) [J times the signal's unit].
        """
        plan_s, plan_j = self._active_s[0], self._energy_j[0]
        power_ratios = rate_ratios / energy_ratios
        rates, powers = rate_ratios @ self._weights.T, power_ratios @ self._weights.T
        scales = powers @ plan_s.sum(axis=0)
        is_known = scales > 0
        if not is_known.any():
            return np.zeros((len(rate_ratios), 3))
        scales_w = np.divide(plan_j.sum(), scales, out=np.zeros_like(scales), where=is_known)
        mean_ratios = rates @ plan_s.sum(axis=0) / plan_s.sum()
        mixes_w = scales_w * _least_power_ratios(mean_ratios, rate_ratios, power_ratios * self._doubts)
        mixes_w += self._host_power_w
        used_s = plan_s.sum(axis=1)
        sooner_s = np.cumsum(self._asked_s) - self._asked_s  # the mix does not wait
        mixed = (
            self._means(self._begins_s - sooner_s, self._active_s.sum(axis=(0, 2))) if sooner_s.any() else self._values
        )
        planned = scales_w * (powers @ (self._values @ plan_s)) + self._host_power_w * (self._values @ used_s)
        following = mixes_w * (mixed @ used_s) - planned - self._asked_signal_energy
        looks, first_pass = (
            mixes_w / mean_ratios * (rates @ (self._values @ active_s))
            - self._values @ (energy_j.sum(axis=1) + self._host_power_w * active_s.sum(axis=1))
            for active_s, energy_j in zip(self._active_s[1:3], self._energy_j[1:3], strict=True)
        )
        return np.where(is_known[:, None], self._pue * np.column_stack((following, looks, first_pass)), 0.0)

    @property
    def pinned_use(self) -> tuple[float, float]:
        """Return for how long it iterated at pinned limits [s], and the energy of its GPUs meanwhile [J]."""
        return float(self._active_s[3].sum()), float(self._energy_j[3].sum())

    def pinned_extra(self, rate_ratios: Values, energy_ratios: Values) -> Values | None:
        """Return what the work at pinned limits took beyond what it would have by the plan, shape (d, 2) [s], [J].

        The plan's speed and energy per iteration are its means before the hour in which the run was first pinned: what
        comes after makes up for the pin. None: the plan did not decide for `MIN_PLANNED_S` before.

        The ratios are those of the known limits, shape (d, n_known).
        """
        (pinned,) = self._active_s[3].any(axis=1).nonzero()
        if not len(pinned):
            return np.zeros((len(rate_ratios), 2))
        plan_s, plan_j = (each[0, : pinned[0]].sum(axis=0) for each in (self._active_s, self._energy_j))
        if plan_s.sum() < MIN_PLANNED_S or not plan_j.sum() > 0:
            return None
        rates, energies = rate_ratios @ self._weights.T, energy_ratios @ self._weights.T
        pinned_s, pinned_j = self._active_s[3].sum(axis=0), self._energy_j[3].sum(axis=0)
        would_take_s = rates @ pinned_s / (rates @ plan_s) * plan_s.sum()
        would_use_j = energies @ pinned_j / (energies @ plan_j) * plan_j.sum()
        return np.column_stack((pinned_s.sum() - would_take_s, pinned_j.sum() - would_use_j))

    def saving(self) -> Saving:
        """Return what was saved, by the ratios as they are."""
        rate_ratios, energy_ratios = self.known_ratios
        twins = self.twins(rate_ratios, energy_ratios)
        following, looks, first_pass = self.parts(rate_ratios, energy_ratios)[0].tolist()
        return Saving(
            energy_j=self._own_energy_j,
            duration_s=self._own_duration_s,
            signal_energy=self._spent,
            baseline_energy_j=float(twins.energy_j[0]),
            baseline_duration_s=float(twins.duration_s[0]),
            baseline_signal_energy=float(twins.signal_energy[0]),
            following_signal_energy=following,
            looks_signal_energy=looks,
            first_pass_signal_energy=first_pass,
        )

    @property
    def _own_duration_s(self) -> float:
        return float(self._active_s.sum() + self._pauses_s.sum() + self._asked_s.sum())

    @property
    def _own_energy_j(self) -> float:
        gpus_j = float(self._energy_j.sum() + self._pauses_j.sum() + self._asked_j.sum())
        return self._pue * (gpus_j + self._host_power_w * self._own_duration_s)

    @property
    def _spent(self) -> float:
        """Return ∫ c·P dt of the run [J times the signal's unit], in the order in which its twin does the same."""
        active_s = self._active_s.sum(axis=(0, 2))
        rests_s = np.maximum(self._spans_s - active_s - self._asked_s, 0.0)
        works_j = self._energy_j.sum(axis=(0, 2)) + self._host_power_w * active_s
        pauses_j = self._pauses_j + self._host_power_w * self._pauses_s
        own = self._values @ works_j + self._means(self._begins_s + active_s, rests_s) @ pauses_j
        return self._pue * (float(own) + self._asked_signal_energy)

    @property
    def _asked_signal_energy(self) -> float:
        """Return ∫ c·P dt of the pauses that were asked for, without PUE [J times the signal's unit]."""
        asked_j = self._asked_j + self._host_power_w * self._asked_s
        from_s = self._begins_s + np.maximum(self._spans_s - self._asked_s, 0.0)
        return float(self._means(from_s, self._asked_s) @ asked_j)

    @property
    def _doubts(self) -> Values:
        """Return by what factor each known limit may need more power than it seems to, shape (n_known,).

        The least of many ratios that are not well known would be too little. So one that the plan does not use, and
        that no look has compared, counts with its error.
        """
        errors = np.array(
            [
                0.0
                if each.n_looks
                else math.hypot(each.rate_error_ratio / each.rate_ratio, each.energy_error_ratio / each.energy_ratio)
                for each in self.known
            ]
        )
        are_used = self._active_s[0].sum(axis=0) @ self._weights > 0
        return np.asarray(1 + np.where(are_used, 0.0, errors))

    def _means(self, begins_s: Values, durations_s: Values) -> Values:
        """Return the mean of the signal over each time, of any shape; over `SHORT_S` at least."""
        durations_s = np.maximum(durations_s, SHORT_S)
        knots_s, areas = self._knots
        return np.asarray(
            (np.interp(begins_s + durations_s, knots_s, areas) - np.interp(begins_s, knots_s, areas)) / durations_s
        )


_PURPOSES: Final = (Purpose.PLAN, Purpose.LOOK, Purpose.FIRST_PASS, Purpose.PINNED)


def _with_top(ratios: Sequence[LimitRatios], top_power_limit_w: float) -> tuple[LimitRatios, ...]:
    """Return the ratios in ascending order of the limit, with those of the top, which are 1."""
    top = LimitRatios(
        power_limit_w=top_power_limit_w,
        rate_ratio=1.0,
        rate_error_ratio=0.0,
        energy_ratio=1.0,
        energy_error_ratio=0.0,
    )
    below = (each for each in ratios if each.power_limit_w < top_power_limit_w - SAME_POINT_W)
    return (*sorted(below, key=lambda each: each.power_limit_w), top)


def _interpolation(known_w: Values, limits_w: Values) -> Values:
    """Return the weight of each known limit at each limit, shape (n_limits, n_known): linear between neighbours."""
    return np.array([np.interp(limits_w, known_w, one) for one in np.eye(len(known_w))]).T.reshape(-1, len(known_w))


def _integral(signal: Signal | None, *, origin_s: float, until_s: float) -> tuple[Values, Values]:
    """Return (times [s], ∫ c dt up to them), both of shape (n,); times count from `origin_s`."""
    known = None if signal is None else np.isfinite(signal.values)
    if signal is None or known is None or not known.any():
        return np.array([0.0, until_s]), np.array([0.0, until_s])
    starts_s, values = signal.starts_s[known] - origin_s, signal.values[known]
    starts_s[0] = min(starts_s[0], 0.0)  # the first value holds for what came before it
    knots_s = np.append(starts_s, max(until_s, starts_s[-1] + SHORT_S))
    areas = np.append(0.0, np.cumsum(values * np.diff(knots_s)))
    return knots_s, areas - np.interp(0.0, knots_s, areas)


def _least_power_ratios(mean_ratios: Values, rate_ratios: Values, power_ratios: Values) -> Values:
    """Return the least power of a mix of two limits with each mean rate, all relative to the top: the lower hull.

    None is faster than the top, which is the last one. It takes some sets of ratios at once, few where there are many
    limits: memory grows with the square of their number.

    Args:
        mean_ratios: the rates, shape (d,).
        rate_ratios: those of the limits, shape (d, n).
        power_ratios: their powers, shape (d, n).
    """
    n_sets = max(MAX_MIXES // rate_ratios.shape[1] ** 2, 1)
    parts = [slice(begin, begin + n_sets) for begin in range(0, len(mean_ratios), n_sets)]
    return np.concatenate([_hull(mean_ratios[part], rate_ratios[part], power_ratios[part]) for part in parts])


def _hull(mean_ratios: Values, rate_ratios: Values, power_ratios: Values) -> Values:
    rate_ratios = np.minimum(rate_ratios, 1.0)
    wanted_ratios = np.maximum(mean_ratios, rate_ratios.min(axis=1))[:, None]
    is_slower, is_faster = rate_ratios <= wanted_ratios + SAME_RATIO, rate_ratios >= wanted_ratios - SAME_RATIO
    low_ratios, high_ratios = rate_ratios[:, :, None], rate_ratios[:, None, :]
    gaps = np.maximum(high_ratios - low_ratios, SAME_RATIO)
    shares = np.clip((wanted_ratios[:, :, None] - low_ratios) / gaps, 0.0, 1.0)
    mixes = (1 - shares) * power_ratios[:, :, None] + shares * power_ratios[:, None, :]
    mixes[~(is_slower[:, :, None] & is_faster[:, None, :])] = np.inf
    return np.where(mean_ratios >= 1 - SAME_RATIO, power_ratios[:, -1], mixes.min(axis=(1, 2)))
