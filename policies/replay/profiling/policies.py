"""The profiling policies to compare: they find a job's power limit while it trains.

`gridchase` is the controller's own: a first sweep of the curve, then a plan by eta that is renewed after each of 60
measurements while the job trains, on a curve sampled from its posterior (Thompson sampling); then the plan on the
posterior mean. `gridchase-unrefined` stops after the first plan. `zeus` is Zeus's sweep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from policies import profiling
from policies.profiling import ProfilerSettings, Refinement
from policies.replay.profiling import zeus_sweep
from policies.replay.profiling.curves import GRID_W
from policies.replay.profiling.training import SimulatedTraining
from policies.vocabulary.cost import zeus_cost
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile

PolicyName = Literal["gridchase", "gridchase-unrefined", "zeus"]
POLICIES: Final[tuple[PolicyName, ...]] = ("gridchase", "gridchase-unrefined", "zeus")
READING_S: Final = 0.27
"""After the sweep the counter is read less often, which makes the replay faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The search of a policy, whose run now has the limit that it keeps.

    Attributes:
        iterations_to_plan: the iterations before the first plan.
        seconds_to_plan_s: their time [s].
        energy_to_plan_j: their energy [J].
        curve: its final estimate of the curve, every 5 W.
    """

    iterations_to_plan: int
    seconds_to_plan_s: float
    energy_to_plan_j: float
    curve: PowerProfile


def search_limit(
    name: PolicyName, training: SimulatedTraining, *, eta: float, rng: np.random.Generator
) -> SearchResult:
    """Let a policy find the limit of a run.

    Args:
        name: the policy.
        training: the run, at its start.
        eta: the weight of energy in the cost, 0 to 1; time has the rest.
        rng: the policy's random numbers.
    """
    return _SEARCHES[name](training, eta, rng)


def best_limit_w(curve: PowerProfile, *, eta: float, max_power_limit_w: float) -> float:
    """Return the limit of least cost [W]."""
    costs = zeus_cost(curve.power_w, curve.iterations_per_s, eta=eta, max_power_w=max_power_limit_w)
    return curve.points[int(np.argmin(costs))].power_limit_w


def _search_zeus(training: SimulatedTraining, eta: float, _: np.random.Generator) -> SearchResult:
    measurements = zeus_sweep.sweep(training)
    result = _result_now(training, fit_curve(zeus_sweep.measured_profile(measurements), step_w=GRID_W))
    training.set_power_limit(zeus_sweep.choose_limit_w(measurements, eta=eta))
    return result


def _search_unrefined(training: SimulatedTraining, eta: float, _: np.random.Generator) -> SearchResult:
    curve = fit_curve(profiling.posterior_curve(_measured(training, settings_of(training))), step_w=GRID_W)
    result = _result_now(training, curve)
    _plan(training, curve, eta)
    return result


def _search_gridchase(training: SimulatedTraining, eta: float, rng: np.random.Generator) -> SearchResult:
    settings = settings_of(training)
    refinement = profiling.begin_refinement(_measured(training, settings))
    first = _result_now(training, refinement.profile)
    training.reading_s = max(training.reading_s, READING_S)
    while profiling.is_exploring(settings, refinement):
        _plan(training, fit_curve(profiling.sampled_curve(refinement.profile, rng), step_w=GRID_W), eta)
        refinement = _refined(training, settings, refinement)
    curve = fit_curve(profiling.posterior_curve(refinement.profile), step_w=GRID_W)
    _plan(training, curve, eta)
    return replace(first, curve=curve)


_SEARCHES: Final[Mapping[PolicyName, Callable[[SimulatedTraining, float, np.random.Generator], SearchResult]]] = {
    "gridchase": _search_gridchase,
    "gridchase-unrefined": _search_unrefined,
    "zeus": _search_zeus,
}


def settings_of(training: SimulatedTraining) -> ProfilerSettings:
    """Return the controller's settings for the GPU of a run, whose prior limit is the highest."""
    profile = training.curve.profile
    return ProfilerSettings(
        prior_power_limit_w=profile.fastest.power_limit_w, floor_power_limit_w=profile.points[0].power_limit_w
    )


def _measured(training: SimulatedTraining, settings: ProfilerSettings) -> PowerProfile:
    state = profiling.begin(settings)
    while (wanted_w := profiling.target_power_limit_w(state)) is not None:
        training.set_power_limit(wanted_w)
        for observation in training.observe():
            state = profiling.advance(settings, state, observation)
            if profiling.target_power_limit_w(state) != wanted_w:
                break  # the remaining observations are at this limit, not at the next one
    profile = profiling.profile_of(state)
    if profile is None:
        raise AssertionError(f"{training.curve.name}: the profiler ended without a point, though every limit held")
    return profile


def _refined(training: SimulatedTraining, settings: ProfilerSettings, refinement: Refinement) -> Refinement:
    """Return the refinement after one more measurement, at the limit in force."""
    n_blocks = refinement.n_blocks
    while True:
        for observation in training.observe():
            refinement = profiling.refine(settings, refinement, observation)
            if refinement.n_blocks > n_blocks:
                return refinement


def _plan(training: SimulatedTraining, curve: PowerProfile, eta: float) -> None:
    training.set_power_limit(best_limit_w(curve, eta=eta, max_power_limit_w=training.curve.max_power_limit_w))


def _result_now(training: SimulatedTraining, curve: PowerProfile) -> SearchResult:
    return SearchResult(
        iterations_to_plan=training.n_iterations,
        seconds_to_plan_s=training.now_s,
        energy_to_plan_j=training.energy_j,
        curve=curve,
    )
