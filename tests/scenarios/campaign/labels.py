"""What tables call the steps of a schedule."""

from collections.abc import Callable, Sequence
from typing import Any, Final

_STEPS: Final = {
    "kill": "SIGKILL",
    "kill_at": "SIGKILL just before or after a write",
    "stop": "stopped, as by SIGTERM",
    "restore": "`gridchase restore`, also beside a controller",
    "lose": "GPU lost",
    "hide": "GPU not ready at a start",
    "lose_journal": "journal deleted",
    "shrink": "training leaves a GPU",
    "set_limit": "another writer",
    "reload_driver": "driver reloaded",
    "flood": "flood of messages",
    "step_clock": "clock stepped",
}
_WRITES: Final = {
    "late": "write takes effect late (50 ms to 20 s)",
    "late_readback": "write is read back late (50 to 900 ms)",
    "clamped": "board clamps",
    "ignored": "write ignored",
    "refused": "write refused",
}
_DISK: Final = {"full": "disk full", "read_only": "disk read-only", "hung": "disk hangs"}
_ENDS: Final = {
    "finished": "run ended",
    "lost": "training lost (last will)",
    "silent": "training falls silent",
}
_FORGERIES: Final = {
    "claim": "forged claim on a GPU",
    "end": "forged end of a run",
    "garbage": "garbage on the bus",
    "plan": "forged plan",
}


def faults_of(steps: Sequence[tuple[str, dict[str, Any]]]) -> set[str]:
    """Return the faults of a schedule, as a table names them."""
    return {label for name, values in steps if (label := _label(name, values))}


def _label(name: str, values: dict[str, Any]) -> str:
    """Return what a table calls a step; "" where it is no fault."""
    detailed: dict[str, Callable[[], str]] = {
        "fault_writes": lambda: _WRITES[values["fault"]],
        "hang": lambda: "driver hangs at every call" if values["reads"] else "driver hangs at writes",
        "set_disk": lambda: _DISK.get(values["mode"], ""),
        "end_training": lambda: _ENDS[values["how"]],
        "forge": lambda: _FORGERIES[values["what"]],
        "set_bus": lambda: "broker away" if values["away"] else "",
        "set_signal": lambda: "signal away" if values["away"] else "",
    }
    return detailed[name]() if name in detailed else _STEPS.get(name, "")
