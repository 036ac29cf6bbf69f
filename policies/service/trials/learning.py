"""Computes a job's posterior and next batch size from its trials: the same in each process, and never stored."""

import logging
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from policies.batch_size import (
    Choice,
    LearningSettings,
    Study,
    best_reached,
    choose_batch_size,
    describe,
    late_cost_bound,
)
from policies.service.config import LearningConfig
from policies.service.records import Job, Posterior, Trial
from policies.service.trials.hardware import Hardware
from policies.service.trials.observations import study_of

_ANY_TIME_S = 0.0
"""A time at which no lease has run out, for answers that do not depend on the time."""
_LOGGER = logging.getLogger(__name__)


class BatchSizeLearning:
    """How batch sizes are learned.

    Args:
        config: what applies where a job has no setting of its own.
        seed: of the random numbers of policies that need them; every process must have the same.
    """

    def __init__(self, config: LearningConfig, *, seed: int = 0) -> None:
        self.lease_s = config.lease_s
        self._config = config
        self._seed = seed

    def eta(self, job: Job) -> float:
        """Return the weight of energy in a job's cost, 0 to 1; the rest is that of time."""
        return self._config.eta if job.settings.eta is None else job.settings.eta

    def study(self, job: Job, trials: Sequence[Trial], now_s: float) -> Study:
        """Return what is known of a job."""
        return study_of(job, trials, self.eta(job), now_s)

    def choose(self, job: Job, study: Study, number: int) -> Choice:
        """Return the batch size of the job's next trial, which has this number."""
        rng = np.random.default_rng([self._seed, crc32(job.name.encode()), number])
        return choose_batch_size(study, self._settings(job), rng=rng)

    def cost_bound(self, job: Job, trials: Sequence[Trial], trial: Trial, now_s: float) -> float | None:
        """Return the cost bound of a trial for the GPUs it is on; None: what an epoch costs there is not known."""
        return self.choose(job, self._study_without(job, trials, trial, now_s), trial.number).cost_bound

    def late_cost_bound(self, job: Job, trials: Sequence[Trial], trial: Trial, now_s: float) -> float | None:
        """Return the cost bound of a trial that got none, for the GPUs it is on; None: there is none yet."""
        return late_cost_bound(self._study_without(job, trials, trial, now_s), self._settings(job))

    def posterior(self, job: Job, trials: Sequence[Trial]) -> Posterior:
        """Return what is believed of a job's batch sizes, and which is next."""
        study = self.study(job, trials, _ANY_TIME_S)
        return Posterior(
            user=job.user,
            job=job.name,
            policy=self._settings(job).policy,
            eta=self.eta(job),
            n_observations=len(study.observations),
            beliefs=tuple(describe(study, self._settings(job))),
            next=self.choose(job, study, next_number(trials)),
        )

    def best_batch_size(self, job: Job, trials: Sequence[Trial]) -> int | None:
        """Return the best batch size that has reached the target; None: not known, or it cannot be computed."""
        try:
            study = self.study(job, trials, _ANY_TIME_S)
            beliefs = describe(study, self._settings(job)) if study.observations else []
        except (ArithmeticError, ValueError) as error:  # among them numpy's LinAlgError
            _LOGGER.warning("%s: the posterior of its batch sizes cannot be computed: %s", job.key, error)
            return None
        best = best_reached(beliefs)
        return best.batch_size if best is not None else None

    def _study_without(self, job: Job, trials: Sequence[Trial], trial: Trial, now_s: float) -> Study:
        """Return what the other trials of a job say of the GPUs that a trial is on."""
        hardware = Hardware(gpu_model=trial.result.gpu_model, n_gpus=trial.result.n_gpus or None)
        others = [other for other in trials if other.number != trial.number]
        return study_of(job, others, self.eta(job), now_s, hardware=hardware, recurrence=trial.recurrence)

    def _settings(self, job: Job) -> LearningSettings:
        """Return how a job's batch size is learned: its own settings, else the configuration's."""
        own = job.settings
        return LearningSettings(
            policy=own.policy or self._config.policy,
            beta=self._config.beta if own.beta is None else own.beta,
            horizon=self._config.horizon,
            # 0 in the configuration means: not given.
            forgetting_ratio=own.forgetting_ratio or self._config.forgetting_ratio or None,
        )


def next_number(trials: Sequence[Trial]) -> int:
    """Return the number of a job's next trial; its newest trial has the last one."""
    return trials[-1].number + 1 if trials else 0
