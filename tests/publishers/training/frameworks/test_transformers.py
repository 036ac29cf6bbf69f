"""What the callback of Hugging Face's `Trainer` passes on of the tokens that it counts; see `tests/frameworks`."""

from types import SimpleNamespace
from typing import Any

import pytest

from publishers.training.frameworks.transformers import TransformersCallback


def work_of_steps(tokens_seen: list[float], *, world_size: int = 1, **arguments: object) -> list[float]:
    """Train a step for each number of tokens seen so far; return the work that was told of each."""
    callback = TransformersCallback(job="bert", broker="mqtt://127.0.0.1:1")
    args = SimpleNamespace(train_batch_size=8, gradient_accumulation_steps=1, world_size=world_size, **arguments)
    state = SimpleNamespace(train_batch_size=8, max_steps=9, global_step=0, epoch=0.0, num_input_tokens_seen=1_000)
    control: Any = SimpleNamespace()
    callback.on_train_begin(args, state, control)
    recorder = callback._fit.recorder
    callback.on_step_begin(args, state, control)
    for state.num_input_tokens_seen in tokens_seen:
        callback.on_step_end(args, state, control)
    found = [amount for segment in recorder.drain(100) for amount in segment.work]
    assert recorder.n_ended == len(tokens_seen)
    callback.on_train_end(args, state, control)
    return found


@pytest.mark.parametrize("setting", [True, "all", "non_padding"])
def test_the_tokens_of_a_step_are_its_work(setting: object) -> None:
    """Those that were seen before, as by a training that is resumed, are of no step."""
    assert work_of_steps([1_512, 1_700, 2_724], include_num_input_tokens_seen=setting) == [512, 188, 1_024]


def test_each_rank_has_its_share_of_what_all_have_seen() -> None:
    assert work_of_steps([1_512, 2_024], world_size=4, include_num_input_tokens_seen="all") == [128, 128]


@pytest.mark.parametrize("arguments", [{}, *({"include_num_input_tokens_seen": setting} for setting in (False, "no"))])
def test_a_trainer_that_counts_no_tokens_tells_no_work(arguments: dict[str, Any]) -> None:
    assert work_of_steps([1_512, 2_024], **arguments) == []


def test_a_model_whose_tokens_the_trainer_cannot_count_tells_no_work() -> None:
    assert work_of_steps([1_000, 1_000], include_num_input_tokens_seen=True) == []
