"""Hugging Face's `Trainer`: a callback publishes its training.

GRIDCHASE_JOB=example python examples/transformers_trainer.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from gridchase import TransformersCallback


def main() -> None:
    """Train a tiny BERT on noise, for a few seconds."""
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    samples = [{"input_ids": torch.randint(0, 64, (12,)), "labels": k % 2} for k in range(256)]
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            tempfile.mkdtemp(),
            num_train_epochs=2,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",  # or "gridchase", instead of the callback below
            use_cpu=True,
        ),
        train_dataset=samples,
        eval_dataset=samples[:32],
        callbacks=[TransformersCallback()],  # the line; job="…" where GRIDCHASE_JOB is not set
    )
    trainer.train()
    print(f"{trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
