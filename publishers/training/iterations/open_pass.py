"""What the recorder knows of a pass over a loader while it goes on, and the log in which a pass notes its times."""

import weakref
from typing import NamedTuple, Protocol


class Source(NamedTuple):
    """A loader, told apart from others without keeping it alive."""

    number: int
    reference: "weakref.ref[object] | None"

    @classmethod
    def of(cls, loader: object) -> "Source":
        """Return which loader this is."""
        try:
            return cls(id(loader), weakref.ref(loader))
        except TypeError:  # a list, for one
            return cls(id(loader), None)

    def is_same(self, other: "Source") -> bool:
        """Return whether both are the same loader."""
        return self.number == other.number and self.reference is other.reference


class TimeLog:
    """When a pass over a loader asked for its batches or, if `is_receipt`, got them; `is_sealed`: that is all."""

    __slots__ = ("is_receipt", "is_sealed", "number", "owner", "times")

    def __init__(self, owner: object, times: list[int], *, is_receipt: bool) -> None:
        self.owner = owner
        self.times = times
        self.is_receipt = is_receipt
        self.is_sealed = False
        self.number = 0


class OpenPass(Protocol):
    """What a recorder asks a pass over a loader, from its first batch to its end; see `LoaderPass`."""

    counts: bool
    is_training: bool

    @property
    def is_new(self) -> bool:
        """Return whether it has neither asked for a second batch nor led to a step."""

    @property
    def last_ns(self) -> int:
        """Return when it last asked for a batch [ns]."""

    def begin_ns(self) -> int | None:
        """Return when it first asked for a batch after the last interruption, or None [ns]."""

    def begin_epoch(self) -> None:
        """Take note that it is a pass of the training."""

    def interrupt(self) -> None:
        """Take note that what was asked for so far belongs to no step to come."""

    def start_paused(self) -> None:
        """Begin to count, if it has only handed out its first batch, since its iteration ends now."""

    def is_over(self, source: Source) -> bool:
        """Return whether it is one over this loader."""
