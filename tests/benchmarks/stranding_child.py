"""A training on the stub GPU whose limit Zeus's own optimizer sets; it needs zeus alone.

PyTorch's place in `sys.modules` is taken by a stand-in that has nothing to wait for and no other ranks.
"""

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, Final

STEP_S: Final = 0.05


def main() -> None:
    """Train until a signal comes."""
    torch: Any = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    torch.cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda *_: None)
    torch.distributed = SimpleNamespace(is_available=lambda: False)
    sys.modules["torch"] = torch
    from zeus.monitor import ZeusMonitor  # noqa: PLC0415 — it looks for torch when it is imported
    from zeus.optimizer.power_limit import GlobalPowerLimitOptimizer, ZeusCost  # noqa: PLC0415

    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(gpu_indices=[0], cpu_indices=[]), ZeusCost(eta_knob=0.5), warmup_steps=2, profile_steps=10
    )
    pause = threading.Event()
    optimizer.on_epoch_begin()
    while True:
        optimizer.on_step_begin()
        pause.wait(STEP_S)
        optimizer.on_step_end()


if __name__ == "__main__":
    main()
