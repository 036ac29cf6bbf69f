"""A job as the policy service may have learned it, by hand: what is shown of it does not need the service."""

import math
from dataclasses import replace

from controller.cli.policy.view import JobView, view_of
from policies.batch_size.study import Belief, Choice
from policies.service.records import Job, Posterior, Result, Trial
from publishers.messages.reports import TrialState

BATCH_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
START_S = 1_780_000_000.0
HOUR_S = 3_600.0
EPOCHS = {32: 30.0, 64: 29.0, 128: 31.0, 256: 34.0, 512: 40.0, 1024: 52.0, 2048: 80.0, 4096: 130.0}
EPOCH_COST = {32: 9e4, 64: 5e4, 128: 3e4, 256: 2e4, 512: 1.8e4, 1024: 1.7e4, 2048: 1.7e4, 4096: 1.6e4}
MAX_POWER_W = 300.0


def belief(batch_size: int, *, n_reached: int = 0, n_stopped: int = 0, is_pruned: bool = False) -> Belief:
    """Return what may be believed of a batch size; the interval narrows with its runs."""
    sd = 0.5 / math.sqrt(1 + 4 * n_reached + n_stopped)
    factor, epochs, epoch_cost = math.exp(1.645 * sd), EPOCHS[batch_size], EPOCH_COST[batch_size]
    return Belief(
        batch_size=batch_size,
        n_reached=n_reached,
        n_stopped=n_stopped,
        is_pruned=is_pruned,
        epochs=epochs,
        epochs_lower=epochs / factor,
        epochs_upper=epochs * factor,
        epoch_cost=epoch_cost,
        epoch_cost_is_known=bool(n_reached + n_stopped),
        cost=epochs * epoch_cost,
        cost_lower=epochs * epoch_cost / factor,
        cost_upper=epochs * epoch_cost * factor,
        log_cost_sd=sd,
    )


def trial(number: int, batch_size: int, *, state: TrialState = "reached", epochs: int | None = None) -> Trial:
    """Return a run; an hour after the one before."""
    trained = round(EPOCHS[batch_size]) if epochs is None else epochs
    asked_s = START_S + number * HOUR_S
    ended = state in {"reached", "stopped", "failed"}
    energy_j = trained * EPOCH_COST[batch_size] * 0.7
    return Trial(
        user="alice",
        job="cifar100",
        run=f"run-{number}",
        recurrence=number,
        batch_size=batch_size,
        state=state,
        reason="knowledge_gradient" if number else "default_first",
        detail="what it may teach is worth its price",
        requested_at_s=asked_s,
        heard_at_s=asked_s + 60,
        lease_s=600.0,
        ended_at_s=asked_s + 1_800 if ended else None,
        result=Result(
            outcome=state if state in ("reached", "stopped", "failed") else None,
            epochs=trained or None,
            reached_epochs=trained if state == "reached" else None,
            energy_j=energy_j if trained else None,
            duration_s=energy_j / 180 if trained else None,
            max_power_w=MAX_POWER_W,
            gpu_model="NVIDIA A40",
        ),
    )


def sample_view() -> JobView:
    """Return a job with twelve runs, of which one is in flight, one was stopped, and one found no memory."""
    trials = [
        trial(0, 1024),
        trial(1, 512),
        trial(2, 4096, state="failed", epochs=0),
        trial(3, 256),
        trial(4, 64, state="stopped", epochs=18),
        *(trial(number, 256, epochs=32 + number % 4) for number in range(5, 11)),
        trial(11, 128, state="running", epochs=3),
    ]
    n_reached = {1024: 1, 512: 1, 256: 7}
    beliefs = tuple(
        belief(size, n_reached=n_reached.get(size, 0), n_stopped=int(size == 64), is_pruned=size == 4096)
        for size in BATCH_SIZES
    )
    choice = Choice(
        batch_size=256,
        reason="knowledge_gradient",
        detail="a run at 256 is expected to cost least, and 50 more recurrences have nothing to learn from another",
        cost_bound=1.4e6,
    )
    return view_of(
        Job(user="alice", name="cifar100", batch_sizes=BATCH_SIZES, default_batch_size=1024, created_at_s=START_S),
        Posterior(
            user="alice", job="cifar100", policy="gridchase", eta=0.5, n_observations=11, beliefs=beliefs, next=choice
        ),
        list(reversed(trials)),
    )


def empty_view() -> JobView:
    """Return a job that has asked once and not come back."""
    view = sample_view()
    nothing = Belief(
        batch_size=32,
        n_reached=0,
        n_stopped=0,
        is_pruned=False,
        epochs=None,
        epochs_lower=None,
        epochs_upper=None,
        epoch_cost=None,
        epoch_cost_is_known=False,
        cost=None,
        cost_lower=None,
        cost_upper=None,
        log_cost_sd=None,
    )
    return JobView(
        job=view.job,
        posterior=Posterior(
            user="alice",
            job="cifar100",
            policy="gridchase",
            eta=0.5,
            n_observations=0,
            beliefs=tuple(replace(nothing, batch_size=size) for size in BATCH_SIZES),
            next=Choice(batch_size=1024, reason="default_first", detail="nothing is known yet"),
        ),
        trials=(trial(0, 1024, state="open", epochs=0),),
        costs={},
    )
