"""The just-in-time profiler: the power curve of a job, measured while it trains. Pure: state in, state out.

    begin ──► Settling ──settle_s──► Measuring ──precise enough──► Settling (the next limit) … ──► Profiled
                  ▲                      │
                  └── another limit came into force, or the job changed ──┘

    begin_refinement(profile_of(profiled)) ──► Refinement ──every block──► the caller replans

The first sweep descends from the prior limit by geometric steps and ends where energy per iteration rises; it takes
some 70 iterations. Then the job trains at the planned limits, and each of them is measured: for up to 60 blocks on
random samples of the posterior of the curve, so that all limits that may be best are tried. Plan on
`fit_curve(sampled_curve(refinement.profile, rng), step_w=…)` while `is_exploring`, and on
`fit_curve(posterior_curve(refinement.profile), step_w=…)` from then on.

An observation is an interval in which iterations ran while the limit that was *requested* is the target limit;
`Observation.power_limit_w` is the one *enforced*.

>>> settings = ProfilerSettings(prior_power_limit_w=300.0, floor_power_limit_w=100.0)
>>> state = begin(settings)
>>> target_power_limit_w(state)
300.0
"""

from policies.profiling.curve_model import posterior_curve, sampled_curve
from policies.profiling.measurement import Observation
from policies.profiling.refinement import Refinement, begin_refinement, is_exploring, refine
from policies.profiling.settings import ProfilerSettings
from policies.profiling.sweep import (
    Measuring,
    Profiled,
    Settling,
    State,
    advance,
    begin,
    profile_of,
    progress_ratio,
    target_power_limit_w,
)

__all__ = [
    "Measuring",
    "Observation",
    "Profiled",
    "ProfilerSettings",
    "Refinement",
    "Settling",
    "State",
    "advance",
    "begin",
    "begin_refinement",
    "is_exploring",
    "posterior_curve",
    "profile_of",
    "progress_ratio",
    "refine",
    "sampled_curve",
    "target_power_limit_w",
]
