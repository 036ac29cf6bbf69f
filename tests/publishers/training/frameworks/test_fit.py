"""A fit is a run; what its callbacks report is counted once; copies publish nothing; nothing is raised."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.training.frameworks import entry_points
from publishers.training.frameworks.fit import Fit
from publishers.training.frameworks.keras import KerasCallback
from publishers.training.frameworks.lightning import FitHooks
from publishers.training.frameworks.transformers import TransformersCallback
from publishers.training.publisher import Publisher
from publishers.training.settings import PublisherOptions

NOWHERE: PublisherOptions = {"job": "toy", "broker": "mqtt://127.0.0.1:9"}


class Owner:
    """What a trainer makes anew for each fit."""


@pytest.fixture
def fits() -> Iterator[Callable[[], Fit]]:
    """Make fits, and end them with the test."""
    made: list[Fit] = []

    def make() -> Fit:
        made.append(Fit(NOWHERE))
        return made[-1]

    yield make
    for fit in made:
        fit.end()


def publisher_of(fit: Fit) -> Publisher:
    assert fit._publisher is not None
    return fit._publisher


def test_steps_are_counted_in_their_epochs_and_pauses_are_not(fits: Callable[[], Fit]) -> None:
    fit = fits()
    fit.begin(Owner(), total_iterations=4, first_epoch=2, batch_size=8)
    for _ in range(2):
        for _ in range(2):
            fit.begin_step()
            fit.end_step()
            fit.pause()
        fit.end_epoch()
    publisher = publisher_of(fit)
    assert (publisher.recorder.n_ended, publisher.recorder.epoch, publisher.recorder.counted_by) == (4, 4, "callback")
    assert publisher.progress.total_iterations == 4


@pytest.mark.parametrize("total", [None, float("inf"), 0, -1])
def test_a_total_that_is_not_known_is_not_published(total: float | None, fits: Callable[[], Fit]) -> None:
    fit = fits()
    fit.begin(Owner(), total_iterations=total)
    assert publisher_of(fit).progress.total_iterations is None


def test_steps_that_are_executed_at_once_share_their_time(fits: Callable[[], Fit]) -> None:
    fit = fits()
    fit.begin(Owner())
    fit.begin_step()
    for n in (8, 300, 1):
        fit.end_steps(n)
    publisher = publisher_of(fit)
    assert publisher.recorder.n_ended == 309
    ends_ns = [end for segment in publisher.recorder.drain(64) for end in segment.ends_ns]
    assert all(before <= after for before, after in pairwise(ends_ns))


def test_two_callbacks_of_one_fit_publish_it_once(fits: Callable[[], Fit]) -> None:
    owner, first, second = Owner(), fits(), fits()
    first.begin(owner)
    second.begin(owner)
    for fit in (first, second):
        fit.begin_step()
        fit.end_step()
        fit.end_epoch()
    second.end()
    assert (first.is_open, second.is_open) == (True, False)
    assert publisher_of(first).recorder.n_ended == 1


def test_the_next_fit_ends_one_that_was_broken_off(fits: Callable[[], Fit]) -> None:
    first, second = fits(), fits()
    first.begin(Owner())
    broken_off = publisher_of(first)
    second.begin(Owner())
    assert (first.is_open, broken_off.closed, second.is_open) == (False, True, True)
    assert publisher_of(second).recorder.n_ended == 0
    second.begin(Owner())  # and so does that of the same callback
    assert second.is_open


def test_a_fit_that_is_over_counts_nothing(fits: Callable[[], Fit]) -> None:
    fit = fits()
    for report in (fit.begin_step, fit.end_step, fit.pause, fit.end_epoch, fit.log_live, fit.end):
        report()
    fit.end_steps(3)
    fit.begin_epoch(1, 2)
    assert not fit.is_open


def test_without_a_job_nothing_is_published_and_one_line_says_why(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        fit = Fit({})
        fit.begin(Owner())
        assert not fit.is_open
    assert [record.message for record in caplog.records] == [
        "publishing is off: job is missing: pass job=… or set GRIDCHASE_JOB"
    ]


@pytest.mark.parametrize("kind", [TransformersCallback, KerasCallback, FitHooks])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301 — ours
def test_a_copy_publishes_nothing_until_it_is_in_a_fit(kind: type[Any], copied: Callable[[Any], Any]) -> None:
    callback = kind(**NOWHERE)
    callback.package = None
    callback._fit.begin(Owner())
    other = copied(callback)
    assert other._fit is not callback._fit
    assert (callback._fit.is_open, other._fit.is_open) == (True, False)
    assert other._fit._options == NOWHERE
    callback._fit.end()


def test_a_step_that_keras_reports_after_a_validation_has_begun_counts() -> None:
    callback = KerasCallback(**NOWHERE)
    callback._fit.begin(Owner())
    for k in range(3):
        callback.on_train_batch_begin(k)
    callback.on_train_batch_end(0)
    callback.on_train_batch_end(1)
    callback.on_test_begin()
    callback.on_train_batch_end(2)  # from another thread, which was late
    callback.on_epoch_end(0)
    assert publisher_of(callback._fit).recorder.n_ended == 3
    callback._fit.end()


def test_more_steps_at_once_than_can_be_count_as_one(caplog: pytest.LogCaptureFixture) -> None:
    callback = KerasCallback(**NOWHERE)
    callback._fit.begin(Owner())
    callback.on_train_batch_begin(0)
    callback.on_train_batch_end(2**70)
    assert publisher_of(callback._fit).recorder.n_ended == 1
    assert "executed at once count as one" in caplog.text
    callback._fit.end()


@pytest.mark.parametrize("find", [entry_points.lightning_callbacks, entry_points.pytorch_lightning_callbacks])
def test_lightning_finds_nothing_where_no_job_is_named(
    find: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRIDCHASE_JOB", raising=False)
    assert find() == []


def test_a_callback_that_cannot_be_made_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRIDCHASE_JOB", "toy")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    assert entry_points.lightning_callbacks() == []
    assert "trainings of lightning.pytorch are not published" in caplog.text


ANYTHING = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=3), st.builds(SimpleNamespace), st.builds(object)
)
HOOKS: dict[type[Any], dict[str, int]] = {
    TransformersCallback: dict.fromkeys(
        ("on_train_begin", "on_step_begin", "on_step_end", "on_prediction_step", "on_log", "on_save", "on_epoch_end",
         "on_train_end"), 3,
    ),
    KerasCallback: {
        "on_train_begin": 1, "on_epoch_begin": 2, "on_train_batch_begin": 2, "on_train_batch_end": 2,
        "on_test_begin": 1, "on_epoch_end": 2, "on_train_end": 1,
    },
    FitHooks: {
        "on_train_start": 2, "on_train_batch_start": 4, "on_train_batch_end": 5, "on_validation_start": 2,
        "on_save_checkpoint": 3, "on_train_epoch_end": 2, "on_train_end": 2, "on_exception": 3,
    },
}  # fmt: skip
"""How many arguments each hook has."""


@pytest.mark.parametrize("kind", list(HOOKS))
@given(data=st.data())
def test_no_order_of_calls_and_no_argument_raises_into_a_training(kind: type[Any], data: st.DataObject) -> None:
    callback = kind(**NOWHERE)
    callback.params = data.draw(st.one_of(st.none(), st.dictionaries(st.sampled_from(["epochs", "steps"]), ANYTHING)))
    if data.draw(st.booleans()):
        callback._fit.begin(Owner())
    for name in data.draw(st.lists(st.sampled_from(sorted(HOOKS[kind])), max_size=8)):
        getattr(callback, name)(*(data.draw(ANYTHING) for _ in range(HOOKS[kind][name])))
    callback._fit.end()
