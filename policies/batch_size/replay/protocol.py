"""The six jobs of the Zeus paper's evaluation: their targets, most epochs, and the batch sizes of their users.

Facts of Zeus 0.3 (github.com/SymbioticLab/Zeus, examples/trace_driven/run_alibaba.py, `get_job_with_defaults`;
Apache-2.0); the paper is arXiv:2208.06102, table 1. Samples of an epoch are those of the training sets as published:
CIFAR-100 (50,000 images), ILSVRC 2012 (1,281,167), SQuAD 1.1 (87,599 questions), LibriSpeech (281,241 utterances of its
960 h), MovieLens 1M (1,000,209 ratings; NCF adds negative samples to them) and Sentiment140 (1,600,000 tweets).
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringJob:
    """What identifies a job in the traces, and what its user asks for.

    Attributes:
        dataset, network, optimizer: as the traces name them.
        target: the validation metric to reach, in its own unit.
        max_epochs: when a run is given up.
        default: the batch size of its user; a GPU with less memory gets the largest that fits.
        n_samples: how many an epoch has, at least.
    """

    dataset: str
    network: str
    optimizer: str
    target: float
    max_epochs: int
    default: int
    n_samples: int

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.dataset}/{self.network}"


JOBS: Final = tuple(
    RecurringJob(
        dataset=dataset,
        network=network,
        optimizer=optimizer,
        target=target,
        max_epochs=max_epochs,
        default=default,
        n_samples=n_samples,
    )
    for dataset, network, optimizer, target, max_epochs, default, n_samples in (
        ("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024, 50_000),
        ("imagenet", "resnet50", "adadelta", 0.65, 100, 256, 1_281_167),
        ("squad", "bert_base_uncased", "adamw", 84.0, 6, 32, 87_599),
        ("librispeech", "deepspeech2", "adamw", 40.0, 16, 256, 281_241),
        ("movielens-1m", "ncf", "adam", 0.41, 100, 1024, 1_000_209),
        ("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128, 1_600_000),
    )
)
