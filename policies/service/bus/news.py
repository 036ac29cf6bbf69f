"""What the service hears of a run: what it can tell the database now, or keep in a file and tell it later.

Each piece is whole in itself, and may be told twice.
"""

from collections.abc import Hashable, Iterable
from typing import Self

from msgspec import Struct

from policies.service.records import Candidates, Timing
from publishers.quantities import BatchSize, Count, Name, Number, Sentence, TimeS
from publishers.reports import RunEnergy


class News(Struct, frozen=True, kw_only=True, tag_field="what"):
    """Something about a run, heard at `at_s`."""

    job: Name
    run: Name
    at_s: TimeS

    @property
    def is_kept(self) -> bool:
        """Return whether it is still worth telling after the database was away."""
        return True

    @property
    def is_lasting(self) -> bool:
        """Return whether it must not be dropped where others can be."""
        return True

    @property
    def key(self) -> Hashable:
        """Return what it is about: of several news about the same, one makes up for all."""
        return type(self), self.job, self.run

    def after(self, older: Self) -> Self:
        """Return what is to be told in the place of older news about the same, and of these: the newer, as a rule."""
        del older
        return self


class Answered(News, frozen=True, kw_only=True, tag="answered"):
    """The run was told its default batch size, because the database was away."""

    batch_sizes: Candidates
    default_batch_size: BatchSize
    reason: Name
    detail: Sentence


class Alive(News, frozen=True, kw_only=True, tag="alive"):
    """The run goes on."""

    @property
    def is_kept(self) -> bool:
        """Return that it is not: it says nothing of what is then."""
        return False

    @property
    def is_lasting(self) -> bool:
        """Return that the next one makes up for it."""
        return False


class Measured(News, frozen=True, kw_only=True, tag="measured"):
    """A validation metric after an epoch."""

    epoch: Count
    value: Number
    reached: bool

    @property
    def is_lasting(self) -> bool:
        """Return whether it is the end of the search for the target."""
        return self.reached

    @property
    def key(self) -> Hashable:
        """Return what it is about."""
        return type(self), self.job, self.run, self.reached

    def after(self, older: Self) -> Self:
        """Return that of the earliest epoch, of several that have reached the target: it is the one that counts."""
        return older if self.reached and older.epoch <= self.epoch else self


class Failed(News, frozen=True, kw_only=True, tag="failed"):
    """The batch size cannot run; `batch_size`: the one that the run has tried, as far as it is known."""

    failure: Sentence
    batch_size: BatchSize | None = None


class Timed(News, frozen=True, kw_only=True, tag="timed"):
    """The run has timed batch sizes before its training."""

    timing: Timing


class Used(News, frozen=True, kw_only=True, tag="used"):
    """What the run has used so far, or in all."""

    energy: RunEnergy

    @property
    def is_kept(self) -> bool:
        """Return whether it is the last word: it holds all that was said before."""
        return self.energy.final

    @property
    def is_lasting(self) -> bool:
        """Return whether it is the last word."""
        return self.energy.final

    @property
    def key(self) -> Hashable:
        """Return what it is about."""
        return type(self), self.job, self.run, self.energy.final


class Ended(News, frozen=True, kw_only=True, tag="ended"):
    """The run is over; how, its training process says: `lost` without a word, or whether it `reached` its target.

    `batch_size` is what it trained with, as its rank 0 counted, one of `n_ranks`; None: it did not say.
    """

    lost: bool
    reached: bool
    batch_size: BatchSize | None = None
    n_ranks: Count | None = None


Story = Answered | Alive | Measured | Failed | Timed | Used | Ended


def merged(older: Story, newer: Story) -> Story:
    """Return what is to be told in the place of two news about the same."""
    return newer.after(older)  # type: ignore[arg-type]  # of one key, hence of one kind


def newest(news: Iterable[Story]) -> list[Story]:
    """Return of several news about the same the one that makes up for all, in the place of the first."""
    found: dict[Hashable, Story] = {}
    for one in news:
        found[one.key] = merged(found[one.key], one) if one.key in found else one
    return list(found.values())
