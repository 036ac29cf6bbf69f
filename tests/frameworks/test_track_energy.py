"""`track_energy` around code with an optimizer of PyTorch: its steps are the iterations, whatever the loop is."""

import pytest

from gridchase import track_energy
from tests.publishers.training.fake_connection import wait_until
from tests.publishers.training.reporting.test_track_energy import Bus, bus

__all__ = ["bus"]
N_STEPS = 20


def test_the_steps_of_an_optimizer_are_iterations(bus: Bus) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @track_energy(job="toy", flush_s=0.001)
    def train() -> None:
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        wait_until(lambda: bus.connections and bus.connections[0].n_iterations() == N_STEPS)

    train()
    (connection,) = bus.connections
    assert {message.counted_by for message in connection.messages()} == {"optimizer"}
    assert connection.statuses()[-1].has_iterations
    assert bus.states() == [["running", "finished"]]
