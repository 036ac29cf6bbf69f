"""Random mixtures of training loops: steps, bursts, pauses and waits, as four kinds of marks show them.

Each mixture is a loop in full: when each batch was requested and returned, and when each step ended. From that follow
the marks of a loader that tells when it was asked, and also when it answered, of an optimizer, and of both; and what is
true.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from policies.profiling.rhythm import Intervals
from policies.vocabulary.units import Values

View = Literal["loader", "loader and receipts", "steps", "steps and requests"]
VIEWS: Final[tuple[View, ...]] = ("loader", "loader and receipts", "steps", "steps and requests")

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Between what the parameters of a mixture are drawn.

    Attributes:
        n_steps: how many steps a mixture has.
        step_s: how long a step takes [s], drawn by its logarithm.
        cv_ratio: how much the steps scatter, drawn by its logarithm.
        burst: how many batches a step draws, where it draws several.
        draws_ratio: the share of a step in which they are drawn; `slow_draws_ratio`: by a slow loader.
        pause_steps: how many steps a pause lasts, drawn by its logarithm.
        pause_every: after how many steps there is one.
        stall_share: the share of the steps after which the loop stalls, drawn by its logarithm.
        stall_steps: for how many steps, drawn by its logarithm.
        drift: the share by which the rate moves over the whole, or in one jump (`jump`).
        halves: how many times as long one of two halves takes, drawn by its logarithm.
        wild_cv_ratio: how much steps scatter where sequences differ in length.
        workers: how many batches a slow loader delivers at a time.
        wait_ratio: how long they are waited for, relative to the work on them, drawn by its logarithm.
        ahead: how many steps a loop dispatches before it waits for them.
        dispatch_ratio: the share of a step that its dispatch takes.
        depth: how many dispatched steps fit a queue.
        sync_every: after how many steps a loop waits until the queue is empty.
    """

    n_steps: tuple[int, int] = (120, 600)
    step_s: Range = (0.01, 1.0)
    cv_ratio: Range = (0.005, 0.2)
    burst: tuple[int, int] = (2, 64)
    draws_ratio: Range = (0.002, 0.04)
    slow_draws_ratio: Range = (0.05, 0.5)
    pause_steps: Range = (5.0, 300.0)
    pause_every: tuple[int, int] = (20, 100)
    stall_share: Range = (0.002, 0.02)
    stall_steps: Range = (2.0, 30.0)
    drift: Range = (0.0, 0.3)
    jump: Range = (0.03, 0.4)
    halves: Range = (2.0, 12.0)
    wild_cv_ratio: Range = (0.3, 0.8)
    workers: tuple[int, int] = (2, 16)
    wait_ratio: Range = (0.2, 4.0)
    ahead: tuple[int, int] = (5, 50)
    dispatch_ratio: Range = (0.1, 0.6)
    depth: tuple[int, int] = (2, 15)
    sync_every: tuple[int, int] = (20, 100)


USUAL: Final = Ranges()
"""Those that the rule was made with."""
UNSEEN: Final = Ranges(
    n_steps=(150, 900),
    step_s=(0.003, 5.0),
    cv_ratio=(0.002, 0.25),
    burst=(3, 48),
    draws_ratio=(0.0005, 0.045),
    slow_draws_ratio=(0.06, 0.6),
    pause_steps=(4.0, 600.0),
    pause_every=(25, 150),
    stall_share=(0.001, 0.03),
    stall_steps=(1.5, 50.0),
    drift=(0.0, 0.5),
    jump=(0.02, 0.6),
    halves=(1.5, 16.0),
    wild_cv_ratio=(0.25, 1.0),
    workers=(2, 24),
    wait_ratio=(0.1, 6.0),
    ahead=(4, 80),
    dispatch_ratio=(0.05, 0.7),
    depth=(2, 24),
    sync_every=(10, 200),
)
"""Others, for a check that nothing was tuned to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What the controller sees of a loop, and what is true: how long an iteration takes [s]."""

    seen: Intervals
    iteration_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A training loop; each step draws the same number of batches.

    Attributes:
        draws_s: how long each draw takes, shape (n_steps, n_batches) [s].
        work_s: for how long the loop works after each draw, shape (n_steps, n_batches) [s].
        after_s: what passes after each step's end and belongs to it, shape (n_steps,) [s].
        pauses_s: what passes then and does not, shape (n_steps,) [s].
        batch_is_iteration: whether a loader that is counted alone counts batches, as where each has work of its own.
        true_step_s: how long a step takes in truth [s]; None: its mean.
    """

    draws_s: Values
    work_s: Values
    after_s: Values
    pauses_s: Values
    batch_is_iteration: bool = False
    true_step_s: float | None = None

    def marks(self, view: View) -> Marks:
        """Return what one kind of marks shows."""
        n_steps, n_batches = self.draws_s.shape
        rest_s = self.work_s.copy()  # from a draw to the next request
        rest_s[:, -1] += self.after_s + self.pauses_s
        requests_s = np.concatenate(([0.0], np.cumsum((self.draws_s + rest_s).ravel())))
        returns_s = requests_s[:-1] + self.draws_s.ravel()
        true_s = self.true_step_s
        if true_s is None:
            true_s = float((self.draws_s.sum() + self.work_s.sum() + self.after_s.sum()) / n_steps)
        if view.startswith("loader"):
            times_s, loose_s = np.diff(requests_s), rest_s.ravel()
            true_s = true_s / n_batches if self.batch_is_iteration else true_s
        else:
            times_s = np.diff((returns_s + self.work_s.ravel()).reshape(n_steps, n_batches)[:, -1])
            loose_s = (self.after_s + self.pauses_s)[:-1]
        tells_loose = view in {"loader and receipts", "steps and requests"}
        return Marks(
            seen=Intervals(
                times_s=times_s,
                loose_s=loose_s if tells_loose else times_s,
                counts_steps=view.startswith("steps"),
                tells_loose=tells_loose,
            ),
            iteration_time_s=true_s,
        )


Maker = Callable[[np.random.Generator, Ranges], Loop]


def steady(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that draws a batch, works, and does nothing else."""
    n = _whole(rng, ranges.n_steps)
    step_s, cv_ratio = _by_log(rng, ranges.step_s), _by_log(rng, ranges.cv_ratio)
    times_s = step_s * _scatter(rng, cv_ratio, n)
    draws_s = times_s * rng.uniform(0.0, 0.05)
    after_s = times_s * rng.uniform(0.0, 0.1)
    return Loop(
        draws_s=draws_s[:, None],
        work_s=(times_s - draws_s - after_s)[:, None],
        after_s=after_s,
        pauses_s=np.zeros(n),
        true_step_s=step_s,
    )


def bursts(rng: np.random.Generator, ranges: Ranges, *, slow: bool = False) -> Loop:
    """Return a loop that draws all batches of a step at once, then works on them."""
    loop = steady(rng, ranges)
    n, k = len(loop.pauses_s), _whole(rng, ranges.burst)
    share = rng.uniform(*(ranges.slow_draws_ratio if slow else ranges.draws_ratio))
    times_s = (loop.draws_s + loop.work_s)[:, 0] + loop.after_s
    draws_s = share * times_s[:, None] / k * _scatter(rng, 0.1, (n, k))
    work_s = np.zeros((n, k)) + 1e-6
    work_s[:, -1] = (1 - share) * times_s - loop.after_s
    return replace(loop, draws_s=draws_s, work_s=work_s)


def with_validation(loop: Loop, rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop with a validation after every so many steps, each about as long."""
    n, every = len(loop.pauses_s), _whole(rng, ranges.pause_every)
    step_s = float((loop.draws_s.sum() + loop.work_s.sum() + loop.after_s.sum()) / n)
    pauses_s = np.zeros(n)
    at = np.arange(every - 1, n, every)
    pauses_s[at] = step_s * _by_log(rng, ranges.pause_steps) * _scatter(rng, 0.02, len(at))
    return replace(loop, pauses_s=pauses_s)


def stalls(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that now and then stalls between two steps."""
    loop = steady(rng, ranges)
    n = len(loop.pauses_s)
    hits = rng.random(n) < _by_log(rng, ranges.stall_share)
    low, high = np.log(ranges.stall_steps)
    lengths = np.exp(rng.uniform(low, high, n))
    return replace(loop, pauses_s=np.where(hits, lengths * (loop.true_step_s or 0.0), 0.0))


def drift(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop whose steps grow longer all the time, or at once; true is the mean of all of them."""
    loop = steady(rng, ranges)
    n = len(loop.pauses_s)
    if rng.random() < 0.5:
        level = 1 + rng.uniform(*ranges.drift) * np.linspace(0, 1, n)
    else:
        level = np.where(np.arange(n) < rng.uniform(0.1, 0.9) * n, 1.0, 1 + rng.uniform(*ranges.jump))
    if rng.random() < 0.5:
        level = level[::-1]
    return replace(
        loop,
        draws_s=loop.draws_s * level[:, None],
        work_s=loop.work_s * level[:, None],
        after_s=loop.after_s * level,
        true_step_s=None,
    )


def two_phase(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that works on each batch of a step as it draws it; the last one takes longer."""
    n, k = _whole(rng, ranges.n_steps) // 2, int(rng.integers(2, 9))
    part_s, cv_ratio = _by_log(rng, ranges.step_s), _by_log(rng, ranges.cv_ratio)
    work_s = part_s * _scatter(rng, cv_ratio, (n, k))
    work_s[:, -1] *= rng.uniform(1.1, 2.0)
    draws_s = part_s * rng.uniform(0.002, 0.04) * np.ones((n, k))
    return Loop(draws_s=draws_s, work_s=work_s, after_s=np.zeros(n), pauses_s=np.zeros(n), batch_is_iteration=True)


def halves(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop whose steps are short and long in turn, as of a generator and a discriminator."""
    loop = steady(rng, ranges)
    ratio = np.where(np.arange(len(loop.pauses_s)) % 2, _by_log(rng, ranges.halves), 1.0)
    return replace(
        loop,
        draws_s=loop.draws_s * ratio[:, None],
        work_s=loop.work_s * ratio[:, None],
        after_s=loop.after_s * ratio,
        true_step_s=None,
    )


def sequence_lengths(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop whose steps differ as much as sequences do in length."""
    cv_ratio = rng.uniform(*ranges.wild_cv_ratio)
    return steady(rng, replace(ranges, cv_ratio=(cv_ratio, cv_ratio)))


def loader_bound(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that waits for its loader, which delivers some batches at a time."""
    loop = steady(rng, ranges)
    n, w = len(loop.pauses_s), _whole(rng, ranges.workers)
    step_s = loop.true_step_s or 0.0
    waits_s = np.zeros(n)
    at = np.arange(0, n, w)
    waits_s[at] = w * step_s * _by_log(rng, ranges.wait_ratio) * _scatter(rng, rng.uniform(0.02, 0.3), len(at))
    return replace(loop, draws_s=loop.draws_s + waits_s[:, None], true_step_s=None)


def runs_ahead(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that dispatches steps, and after every few waits until they are done."""
    loop = steady(rng, ranges)
    n, q = len(loop.pauses_s), _whole(rng, ranges.ahead)
    times_s = (loop.draws_s + loop.work_s)[:, 0] + loop.after_s
    share = rng.uniform(*ranges.dispatch_ratio)
    dispatch_s = share * times_s
    waits_s = np.zeros(n)
    for end in range(q, n + 1, q):
        waits_s[end - 1] = (times_s - dispatch_s)[end - q : end].sum()
    return replace(
        loop,
        draws_s=0.01 * dispatch_s[:, None],
        work_s=0.99 * dispatch_s[:, None],
        after_s=waits_s,
    )


def queue_is_full(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that dispatches steps until a queue is full, and now and then waits until it is empty."""
    loop = steady(rng, ranges)
    n, every, depth = len(loop.pauses_s), _whole(rng, ranges.sync_every), _whole(rng, ranges.depth)
    times_s = (loop.draws_s + loop.work_s)[:, 0] + loop.after_s
    dispatch_s = rng.uniform(*ranges.dispatch_ratio) * times_s
    now_s, done_s, work_s, waits_s = 0.0, np.zeros(n), np.zeros(n), np.zeros(n)
    for i in range(n):
        begin_s = now_s
        now_s = max(now_s, float(done_s[i - depth]) if i >= depth else 0.0) + float(dispatch_s[i])
        done_s[i] = max(now_s, float(done_s[i - 1]) if i else 0.0) + float(times_s[i] - dispatch_s[i])
        work_s[i] = now_s - begin_s
        if (i + 1) % every == 0:
            waits_s[i] = done_s[i] - now_s
            now_s = float(done_s[i])
    draws_s = 0.01 * dispatch_s
    return Loop(
        draws_s=draws_s[:, None],
        work_s=(work_s - draws_s)[:, None],
        after_s=waits_s,
        pauses_s=np.zeros(n),
    )


def never_waits(rng: np.random.Generator, ranges: Ranges) -> Loop:
    """Return a loop that dispatches steps and never waits: its marks say nothing about the steps."""
    loop = steady(rng, ranges)
    share = rng.uniform(*ranges.dispatch_ratio)
    return replace(loop, draws_s=loop.draws_s * share, work_s=loop.work_s * share, after_s=loop.after_s * share)


ROWS: Final[dict[str, Maker]] = {
    "steady": steady,
    "bursts of k, draws up to 4 % of the step": bursts,
    "bursts, slow loader (5 to 50 %)": lambda rng, ranges: bursts(rng, ranges, slow=True),
    "bursts and validation": lambda rng, ranges: with_validation(bursts(rng, ranges), rng, ranges),
    "validation in the loop, 5 to 300 steps": lambda rng, ranges: with_validation(steady(rng, ranges), rng, ranges),
    "stalls of 2 to 30 steps, 0.2 to 2 %": stalls,
    "drift up to 30 %, or a jump of 3 to 40 %": drift,
    "two-phase (accumulation drawn singly)": two_phase,
    "GAN halves 1:2 to 1:12": halves,
    "sequence lengths, cv 0.3 to 0.8": sequence_lengths,
    "loader-bound, w batches at a time": loader_bound,
    "asynchronous, runs ahead by q, then waits": runs_ahead,
    "asynchronous, queue of a few steps": queue_is_full,
    "asynchronous, never waits": never_waits,
}


def mixture(row: str, seed: int, index: int, ranges: Ranges = USUAL) -> Loop:
    """Return one mixture of a row, always the same."""
    rng = np.random.default_rng((seed, list(ROWS).index(row), index))
    return ROWS[row](rng, ranges)


def _whole(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))


def _by_log(rng: np.random.Generator, bounds: Range) -> float:
    return math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))


def _scatter(rng: np.random.Generator, cv_ratio: float, shape: int | tuple[int, ...]) -> Values:
    """Return lognormal factors with mean 1."""
    sd = math.sqrt(math.log1p(cv_ratio**2))
    return np.asarray(np.exp(sd * rng.standard_normal(shape) - sd * sd / 2), dtype=np.float64)
