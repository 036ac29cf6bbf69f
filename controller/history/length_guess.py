"""How long a run will be, by the former runs of its job that this node has led.

Counted are those that have finished and were observed throughout, with the same batch size and as many processes: what
the work of a run is depends on these. How much of its time limit it takes depends on its GPUs, too.
"""

from collections.abc import Sequence
from dataclasses import replace

from controller.history.run_history import EndedRun
from policies.planning.run_length import GuessedLength, guess_by_time_limit, guess_length
from publishers.messages.training import RankStatus


def guessed_length(
    former: Sequence[EndedRun],
    status: RankStatus,
    *,
    gpu_model: str,
    n_iterations: float,
    n_unobserved: float,
    now_s: float,
) -> GuessedLength | None:
    """Return where a run is taken to end, in iterations from the first observed one.

    By the iterations of former runs, or by what they used of their time limits, whichever scatters less. None: the run
    has announced its length, or former ones do not tell it.

    Args:
        former: the runs of the job that have ended, the latest last.
        status: what the run has said of itself.
        gpu_model: the model of its GPUs.
        n_iterations: its iterations so far.
        n_unobserved: those before the first that was observed.
        now_s: Unix time [s].
    """
    if status.total_iterations is not None:
        return None
    alike = [
        each
        for each in former
        if each.end == "finished"
        and each.is_complete
        and each.n_iterations > 0
        and (each.batch_size, each.world_size) == (status.batch_size, status.world_size)
    ]
    done_iterations = n_iterations + n_unobserved
    guesses = [guess_length([each.n_iterations for each in alike], done_iterations)]
    used_ratio = _used_ratio(status.started_at_s, status.time_limit_s, now_s)
    if used_ratio is not None:
        used_ratios = (
            _used_ratio(each.started_at_s, each.time_limit_s, each.ended_at_s)
            for each in alike
            if each.gpu_model == gpu_model
        )
        known = [each for each in used_ratios if each is not None]
        guesses.append(guess_by_time_limit(known, used_ratio, done_iterations))
    best = min((guess for guess in guesses if guess is not None), key=lambda guess: guess.spread_ratio, default=None)
    return best and replace(best, total_iterations=best.total_iterations - n_unobserved)


def _used_ratio(started_at_s: float, time_limit_s: float | None, until_s: float) -> float | None:
    """Return how much of the time to its limit a run has used; None where it has no limit, or no time has passed."""
    if time_limit_s is None or not started_at_s < min(time_limit_s, until_s):
        return None
    return (until_s - started_at_s) / (time_limit_s - started_at_s)
