"""Whether a training has reached what it is for: a target for its metric, or its own word."""

from typing import Final, Literal

from publishers.caution import number, text

LARGEST_METRIC: Final = 1e18
"""What the bus takes; what is not a number is not below it, either."""
Mode = Literal["max", "min"]
_LONGEST: Final = 40


class Goal:
    """A target and how the metrics stand to it; the training loop's own business, whether or not anything is published.

    Attributes:
        reached: True from when it was reached; False where there is a target, metrics came, and none reached it.
        reason: why the training is at its goal, in a sentence; None until it is.
    """

    def __init__(self) -> None:
        self.reached: bool | None = None
        self.reason: str | None = None
        self._target: float | None = None
        self._mode: Mode = "max"

    def aim(self, target: object, mode: object) -> list[str]:
        """Take a target for the metric, to be reached from below (`max`) or above (`min`); return what is wrong."""
        faults = []
        if mode not in {"max", "min"}:
            faults.append(f"target_mode = {text(mode, _LONGEST)}: must be max or min")
        if target is None:
            return faults
        value = number(target)
        if value is None or not abs(value) <= LARGEST_METRIC:
            faults.append(
                f"target = {text(target, _LONGEST)}: must be a number from -{LARGEST_METRIC:g} to {LARGEST_METRIC:g}"
            )
        elif not faults:
            self._target, self._mode = value, "min" if mode == "min" else "max"
        return faults

    def note(self, value: float, *, said: bool | None) -> bool:
        """Take a metric, and what the training says of it, which comes first; return whether it is at the goal.

        What is no number, or lies beyond what the bus takes, reaches nothing by itself.
        """
        target = self._target
        is_reached = said if said is not None else target is not None and self._reaches(value, target)
        if is_reached and self.reason is None:
            self.reason = (
                "the training says that it has reached its target"
                if said
                else f"the metric, {value:g}, has reached its target, {target:g}"
            )
        if is_reached or target is not None:
            self.reached = bool(is_reached or self.reached)
        return is_reached

    def _reaches(self, value: float, target: float) -> bool:
        if not abs(value) <= LARGEST_METRIC:
            return False
        return value >= target if self._mode == "max" else value <= target
