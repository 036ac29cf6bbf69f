"""The baseline: the same work on the same simulated GPU at the prior limit, really simulated, iteration by iteration.

Time is virtual: nothing waits. Noise, start and pauses are those of the run it is compared with.
"""

from controller.adapters.curve import Curve
from controller.adapters.simulated_history import History
from controller.adapters.simulated_noise import Noise
from controller.demo.workload import Training, Workload


def run_baseline(
    curve: Curve, workload: Workload, *, seed: int, start_ns: int, begin_ns: int, power_limit_w: float
) -> History:
    """Return the history of a GPU that was switched on at `start_ns` and ran the whole job from `begin_ns` on."""
    noise = Noise(seed)
    history = History(curve, noise, start_ns=start_ns, power_limit_w=power_limit_w)
    training = Training(history, noise, begin_ns=begin_ns, wait=lambda end_ns: end_ns)
    training.run(workload, range(workload.iterations_per_epoch))
    return history
