"""A driver that never returns from a reading of a meter: the limit comes back all the same."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.backend import ENERGY
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
HOUR_MS = 3_600_000


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


def test_a_meter_that_never_answers_keeps_neither_the_limit_nor_the_process(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    node.machine.gpu().hang(ENERGY, HOUR_MS)
    wait_for(node, lambda: "no answer in 2 s" in node.log())
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W
