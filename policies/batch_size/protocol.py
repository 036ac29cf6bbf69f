"""The six jobs of the Zeus paper's evaluation: their targets, most epochs, and the batch sizes of their users.

Facts of Zeus 0.3 (github.com/SymbioticLab/Zeus, examples/trace_driven/run_alibaba.py, `get_job_with_defaults`;
Apache-2.0); the paper is arXiv:2208.06102, table 1.
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
    """

    dataset: str
    network: str
    optimizer: str
    target: float
    max_epochs: int
    default: int

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.dataset}/{self.network}"


JOBS: Final = tuple(
    RecurringJob(
        dataset=dataset, network=network, optimizer=optimizer, target=target, max_epochs=max_epochs, default=default
    )
    for dataset, network, optimizer, target, max_epochs, default in (
        ("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024),
        ("imagenet", "resnet50", "adadelta", 0.65, 100, 256),
        ("squad", "bert_base_uncased", "adamw", 84.0, 6, 32),
        ("librispeech", "deepspeech2", "adamw", 40.0, 16, 256),
        ("movielens-1m", "ncf", "adam", 0.41, 100, 1024),
        ("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128),
    )
)
