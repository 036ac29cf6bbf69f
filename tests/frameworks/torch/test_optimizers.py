"""Each optimizer step is one iteration, whatever kind of optimizers a training has, and however it uses them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="`make test-frameworks` sets up an environment that has PyTorch")

import torch

from gridchase import Publisher
from tests.frameworks.torch.counted import loader, loss, net, published, step


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def plain(publisher: Publisher) -> None:
    model = net()
    optimizer = adam(model)
    for batch in publisher.iterations(loader()):
        step(model, optimizer, batch)


def gan(publisher: Publisher) -> None:
    generator, discriminator = net(), net()
    optimizers = adam(generator), adam(discriminator)
    for k, batch in enumerate(publisher.iterations(loader())):
        step(discriminator, optimizers[1], batch)
        if k % 5 == 4:
            step(generator, optimizers[0], batch)


def gan_whose_generator_is_first(publisher: Publisher) -> None:
    generator, discriminator = net(), net()
    optimizers = adam(generator), adam(discriminator)
    for k, batch in enumerate(publisher.iterations(loader())):
        if k % 5 == 0:
            step(generator, optimizers[0], batch)
        step(discriminator, optimizers[1], batch)


def gan_in_turns(publisher: Publisher) -> None:
    generator, discriminator = net(), net()
    optimizers = adam(generator), adam(discriminator)
    for batch in publisher.iterations(loader()):
        step(discriminator, optimizers[1], batch)
        step(generator, optimizers[0], batch)


def within_the_backward_pass(publisher: Publisher) -> None:
    model = torch.nn.Sequential(net(), torch.nn.Linear(1, 1))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for batch in publisher.iterations(loader()):
        loss(model, batch).backward()


class Lookahead(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not installed where types are checked
    """An optimizer that wraps another."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        self._inner.step(closure)


def lookahead(publisher: Publisher) -> None:
    model = net()
    optimizer = Lookahead(sgd(model))
    for batch in publisher.iterations(loader()):
        step(model, optimizer, batch)


class SAM(torch.optim.Optimizer):  # type: ignore[misc]
    """Sharpness-aware minimization, as its implementations have it: two passes, one update."""

    def __init__(self, parameters: Any) -> None:  # noqa: ANN401 — those of torch
        super().__init__(parameters, {"rho": 0.05})
        self._base = torch.optim.SGD(self.param_groups, lr=0.1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old"] = parameter.data.clone()
                parameter.add_(parameter.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = self.state[parameter]["old"]
        self._base.step()
        self.zero_grad()


def sharpness_aware(publisher: Publisher) -> None:
    model = net()
    optimizer = SAM(model.parameters())
    for batch in publisher.iterations(loader()):
        loss(model, batch).backward()
        optimizer.first_step()
        loss(model, batch).backward()
        optimizer.second_step()


def with_a_closure(publisher: Publisher) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for batch in publisher.iterations(loader()):

        def closure(batch: object = batch) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            return value

        optimizer.step(closure)


def with_a_scheduler(publisher: Publisher) -> None:
    model = net()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for batch in publisher.iterations(loader()):
        step(model, optimizer, batch)
        scheduler.step()


def compiled(publisher: Publisher) -> None:
    model = net()
    optimizer = sgd(model)
    update = torch.compile(optimizer.step, backend="eager")
    for batch in publisher.iterations(loader()):
        optimizer.zero_grad()
        loss(model, batch).backward()
        update()


def compiled_as_a_part(publisher: Publisher) -> None:
    model = net()
    optimizer = adam(model)
    update = torch.compile(lambda batch: step(model, optimizer, batch), backend="eager")
    for batch in publisher.iterations(loader()):
        update(batch)


def made_before_and_copied(publisher: Publisher) -> None:
    model = net()
    optimizer = sgd(model)
    optimizer.load_state_dict(optimizer.state_dict())
    for batch in publisher.iterations(loader()):
        step(model, optimizer, batch)


@pytest.mark.parametrize(
    "train",
    [
        plain,
        gan,
        gan_whose_generator_is_first,
        gan_in_turns,
        within_the_backward_pass,
        lookahead,
        sharpness_aware,
        with_a_closure,
        with_a_scheduler,
        compiled,
        compiled_as_a_part,
        made_before_and_copied,
    ],
    ids=lambda train: str(train.__name__),
)
def test_ten_steps_are_ten_iterations(train: Callable[[Publisher], None]) -> None:
    result = published(train)
    assert (result.n_iterations, result.counted_by) == (10, {"optimizer"})
    assert all(message.requests_ns() for message in result.messages)


def test_a_step_that_a_grad_scaler_skips_is_part_of_the_next_iteration_and_no_pause() -> None:
    begun_ns, done_ns = [], []

    def train(publisher: Publisher) -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1.0)
        for k, batch in enumerate(publisher.iterations(loader())):
            begun_ns.append(time.monotonic_ns())
            optimizer.zero_grad()
            value = scaler.scale(loss(model, batch))
            (value * float("inf") if k in {3, 7} else value).backward()
            scaler.step(optimizer)
            scaler.update()
            done_ns.append(time.monotonic_ns())

    result = published(train)
    requests_ns = [time_ns for message in result.messages for time_ns in message.requests_ns() or []]
    assert result.n_iterations == len(requests_ns) == 8
    for request_ns, after in zip(requests_ns[1:], [0, 1, 2, 4, 5, 6, 8], strict=True):
        assert done_ns[after] <= request_ns <= begun_ns[after + 1]  # and not after the skipped step


def test_two_updates_by_one_optimizer_for_a_batch_are_two_iterations() -> None:
    def train(publisher: Publisher) -> None:
        model = net()
        optimizer = sgd(model)
        for batch in publisher.iterations(loader()):
            step(model, optimizer, batch)
            step(model, optimizer, batch)

    assert published(train, total_iterations=20).total == published(train).n_iterations == 20


def test_each_of_many_updates_with_one_batch_is_iteration_from_its_begin() -> None:
    def train(publisher: Publisher) -> None:  # as reinforcement learning does
        model = net()
        optimizer = adam(model)
        for batch in publisher.iterations(loader()):
            for _ in range(7):
                step(model, optimizer, batch)

    result = published(train)
    assert result.n_iterations == 70
    assert sum(len(message.requests_ns() or []) for message in result.messages) == 70


@pytest.mark.parametrize("is_kept", [True, False])
def test_every_fold_of_a_cross_validation_is_counted(is_kept: bool) -> None:
    def train(publisher: Publisher) -> None:
        kept = []
        for _ in range(3):
            model = net()
            optimizer = adam(model)
            kept.append(optimizer if is_kept else None)
            for _ in range(2):
                for batch in publisher.iterations(loader()):
                    step(model, optimizer, batch)

    assert published(train).epochs == dict.fromkeys(range(6), 10)


def test_steps_are_counted_without_any_loader() -> None:
    def train(publisher: Publisher) -> None:
        model = net()
        optimizer = adam(model)
        for _ in publisher.epochs(2):
            for batch in loader():
                step(model, optimizer, batch)

    result = published(train)
    assert result.epochs == {0: 10, 1: 10}
    assert all(message.requests_ns() is None for message in result.messages)


class OwnOptimizer:
    """An optimizer that is none of PyTorch's."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def step(self) -> None:
        for parameter in self._model.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None


def test_the_batches_count_where_an_optimizer_is_none_of_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    def train(publisher: Publisher) -> None:
        model = net()
        optimizer = OwnOptimizer(model)
        training, validation = publisher.iterations(loader()), publisher.iterations(loader(5))
        for _ in range(4):
            for batch in training:
                loss(model, batch).backward()
                optimizer.step()
            with torch.no_grad():
                for batch in validation:
                    loss(model, batch)

    result = published(train)
    assert result.counted_by == {"loader"}
    assert result.epochs == {0: 10, 1: 10, 2: 10, 3: 10}
    assert ["no step of a PyTorch optimizer" in record.message for record in caplog.records].count(True) == 1


def test_nothing_is_said_about_a_training_that_is_counted_by_its_steps(caplog: pytest.LogCaptureFixture) -> None:
    published(plain)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_the_training_computes_the_same_as_without() -> None:
    def weights(publisher: Publisher | None) -> list[float]:
        torch.manual_seed(1)
        model = net()
        optimizer = adam(model)
        bare = loader(shuffle=True)
        for batch in publisher.iterations(bare) if publisher is not None else bare:
            step(model, optimizer, batch)
        return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]

    found: list[list[float]] = []
    published(lambda publisher: found.append(weights(publisher)))
    assert found == [weights(None)]
