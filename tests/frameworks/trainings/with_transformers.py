"""Trains with Hugging Face's `Trainer`."""

import tempfile
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.frameworks.trainings.torch_parts import CountingSGD, Net, Numbers
from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, N_VALIDATION, Truth, arguments, trainings


class Interruptions(TrainerCallback):  # type: ignore[misc]  # it is not installed where types are checked
    """Stops, or fails, as the test asks."""

    def __init__(self, options: Any) -> None:  # noqa: ANN401
        self._options = options

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        if state.global_step == self._options.stop_after:
            control.should_save = control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        if self._options.fail and state.epoch and state.epoch >= 1:
            raise SystemError("the training is broken")


def main() -> None:
    for options, truth in trainings(arguments()):
        if options.callback:
            from gridchase import TransformersCallback  # noqa: F401, PLC0415 — a bare training does not have it
        rank = 0
        for _ in range(options.fits):
            torch.manual_seed(0)
            trainer = new_trainer(options, truth)
            trainer.train(resume_from_checkpoint=True if options.resume else None)
            rank = trainer.args.process_index
        truth.write(rank)


class WrappingTrainer(Trainer):  # type: ignore[misc]
    """A trainer whose loader is published."""

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        from gridchase import publish_iterations  # noqa: PLC0415 — a bare training does not have it

        return publish_iterations(super().get_train_dataloader())


def new_trainer(options: Any, truth: Truth) -> Any:  # noqa: ANN401
    net = Net(truth)
    net.main_input_name = "x"  # what the trainer counts the tokens of
    return (WrappingTrainer if options.wrap else Trainer)(
        net,
        TrainingArguments(
            str(options.save or tempfile.mkdtemp()),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=BATCH_SIZE,
            gradient_accumulation_steps=options.accumulation,
            eval_strategy="epoch" if options.validation else "no",
            save_strategy="epoch" if options.save else "no",
            report_to="gridchase" if options.callback else "none",
            use_cpu=True,
            disable_tqdm=True,
            include_num_input_tokens_seen="all" if options.tokens else "no",
        ),
        train_dataset=Numbers(N_SAMPLES),
        eval_dataset=Numbers(N_VALIDATION),
        optimizers=(CountingSGD(net.parameters(), truth), None),
        callbacks=[Interruptions(options)],
    )


if __name__ == "__main__":
    main()
