"""The callback of Hugging Face's `Trainer`.

from gridchase import TransformersCallback
Trainer(…, callbacks=[TransformersCallback(job="bert")])

The import also makes `TrainingArguments(report_to="gridchase")` possible, with the job from `GRIDCHASE_JOB`.
"""

from typing import TYPE_CHECKING, Final, Unpack

from publishers.training.frameworks.fit import Fit, harmless, warn_fault
from publishers.training.settings import PublisherOptions

try:
    from transformers import TrainerCallback
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
except ImportError:  # for whoever only reads or checks this package
    TrainerCallback, INTEGRATION_TO_CALLBACK = object, {}

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


_COUNTS_NONE: Final = (False, None, "no")


class TransformersCallback(TrainerCallback):  # type: ignore[misc]  # it is not installed where types are checked
    """Publishes the optimizer steps of each `train()`, with their total, epochs, evaluations, checkpoints and end.

    With `include_num_input_tokens_seen` the tokens that the trainer counts are the work of a step.

    Args:
        options: who publishes, and where to: as for `publish_iterations`; the batch size is the trainer's.
    """

    def __init__(self, **options: Unpack[PublisherOptions]) -> None:
        self._fit: Final = Fit(options)
        self._n_tokens: float | None = None  # those seen so far; None: the trainer does not count them

    @harmless
    def on_train_begin(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **_: object,
    ) -> None:
        """Begin a run; of a resumed training with what is left of it."""
        counts_tokens = getattr(args, "include_num_input_tokens_seen", False) not in _COUNTS_NONE
        self._n_tokens = state.num_input_tokens_seen if counts_tokens else None
        self._fit.begin(
            state,
            batch_size=(state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps,
            total_iterations=state.max_steps - state.global_step,
            first_epoch=int(state.epoch or 0),
            stop=lambda: setattr(control, "should_training_stop", True),
            work_unit="tokens" if counts_tokens else None,
        )

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Begin an iteration after a pause: its first batch is there."""
        if not self._fit.is_in_step:
            self._begin_step()

    def on_step_end(self, args: "TrainingArguments", state: "TrainerState", *_: object, **__: object) -> None:
        """End an iteration: an optimizer step. Its tokens are summed over the ranks, and all have the same share."""
        try:
            if self._n_tokens is None:
                self._fit.end_step()
            else:
                n_before, self._n_tokens = self._n_tokens, state.num_input_tokens_seen
                self._fit.end_step(work=(self._n_tokens - n_before) / args.world_size or None)
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("on_step_end", error)

    @harmless
    def on_prediction_step(self, *_: object, **__: object) -> None:
        """Leave out an evaluation, from its first batch on."""
        self._fit.pause()

    @harmless
    def on_log(self, *_: object, **__: object) -> None:
        """Log the live values to W&B, MLflow or Comet, where the training does."""
        self._fit.log_live()

    @harmless
    def on_save(self, *_: object, **__: object) -> None:
        """Leave out a checkpoint, which has just been written."""
        self._fit.pause()

    @harmless
    def _begin_step(self) -> None:
        self._fit.begin_step()

    @harmless
    def on_epoch_end(self, *_: object, **__: object) -> None:
        """End the epoch."""
        self._fit.end_epoch()

    @harmless
    def on_train_end(self, *_: object, **__: object) -> None:
        """End the run."""
        self._fit.end()


INTEGRATION_TO_CALLBACK["gridchase"] = TransformersCallback
