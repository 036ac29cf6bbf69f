"""Studies for the tests of the default policy: a job of six batch sizes, and shorthands for its runs."""

from collections.abc import Mapping

from policies.batch_size.study import LearningSettings, Observation, Study

SIZES = (8, 16, 32, 64, 128, 256)
COSTS = {size: 1_000.0 * (1 + 8 / size) for size in SIZES}
SETTINGS = LearningSettings()


def reached(batch_size: int, epochs: float) -> Observation:
    """Return a run that reached its target."""
    return Observation(batch_size=batch_size, outcome="reached", epochs=epochs)


def stopped(batch_size: int, epochs: float, cost: float | None = None) -> Observation:
    """Return a run that was stopped before."""
    return Observation(batch_size=batch_size, outcome="stopped", epochs=epochs, cost=cost)


def failed(batch_size: int) -> Observation:
    """Return a run that ran out of memory."""
    return Observation(batch_size=batch_size, outcome="failed")


def study(
    *observations: Observation,
    costs: Mapping[int, float] = COSTS,
    times: Mapping[int, float] | None = None,
    in_flight: tuple[int, ...] = (),
    default: int = 32,
) -> Study:
    """Return a study of the job; by default all costs of an epoch are known."""
    return Study(
        candidates=SIZES,
        default=default,
        observations=observations,
        epoch_costs=costs,
        epoch_times=times or {},
        in_flight=in_flight,
    )
