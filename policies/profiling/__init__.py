"""The just-in-time profiler: the curve of a job over its power limits, measured while it trains. State in, action out.

    begin ──► Settling ──settle_s──► Measuring ──known well enough──► Settling (the next limit) … ──► Profiled
                  ▲                      │
                  └── another limit came into force, or the job became another ──┘

    begin_refinement(profile_of(profiled)) ──► Refinement ──every block──► the caller plans anew, on `perturbed(…)`

The first pass goes down from the prior limit by geometric steps and ends where energy per iteration rises; it takes
some 70 iterations. Then the job trains at the limits that are planned, and each of them is measured: for the first
60 blocks on a curve perturbed by what is not known of it, so that all limits that may be best are tried. Plan on
`fit_curve(perturbed(refinement.profile, rng), step_w=…)` while `is_curious`, and on
`fit_curve(believed(refinement.profile), step_w=…)` from then on (`policies.vocabulary.power_curve.fit_curve`).

The caller shows it observations: slices of time in which iterations ran, made while the limit that was *requested* is
the one wanted. `Observation.power_limit_w` is the one *enforced*.

>>> settings = ProfilerSettings(prior_power_limit_w=300.0, floor_power_limit_w=100.0)
>>> state = begin(settings)
>>> wanted_power_limit_w(state)
300.0
"""

from policies.profiling.curve_model import posterior_curve, sampled_curve
from policies.profiling.measurement import Observation
from policies.profiling.refinement import Refinement, begin_refinement, is_curious, refine
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
    wanted_power_limit_w,
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
    "is_curious",
    "posterior_curve",
    "profile_of",
    "progress_ratio",
    "refine",
    "sampled_curve",
    "wanted_power_limit_w",
]
