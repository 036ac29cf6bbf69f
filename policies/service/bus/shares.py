"""Fair shares of what is bounded: who has most of it, and what is dropped, so that a flood drops nobody else's."""

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import Generic, TypeVar

from policies.service.records import JobKey
from publishers.messages.topics import RunKey

Owner = TypeVar("Owner", bound=Hashable)
Value = TypeVar("Value")


class Counts(Generic[Owner]):
    """How many things each owner has; every call takes the same time, however many owners there are.

    Attributes:
        most: the most that any of them has.
    """

    def __init__(self) -> None:
        self.most = 0
        self._n: dict[Owner, int] = {}
        self._owners_with: defaultdict[int, OrderedDict[Owner, None]] = defaultdict(OrderedDict)

    def add(self, owner: Owner) -> None:
        """Count one more."""
        self._move(owner, self._n.get(owner, 0) + 1)

    def remove(self, owner: Owner) -> None:
        """Count one less."""
        self._move(owner, self._n[owner] - 1)

    def largest(self) -> Owner:
        """Return an owner who has most."""
        return next(iter(self._owners_with[self.most]))

    def _move(self, owner: Owner, n_now: int) -> None:
        n_before = self._n.pop(owner, 0)
        self._owners_with[n_before].pop(owner, None)
        if not self._owners_with[n_before]:
            del self._owners_with[n_before]
        if n_now:
            self._n[owner] = n_now
            self._owners_with[n_now][owner] = None
        if n_now > self.most or self.most not in self._owners_with:
            self.most = n_now  # it changes by one at a time


class KeysByJob:
    """The keys of each job of one user, oldest first."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, JobKey] = OrderedDict()
        self._keys: defaultdict[JobKey, OrderedDict[Hashable, None]] = defaultdict(OrderedDict)
        self._counts: Counts[JobKey] = Counts()

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._jobs)

    def add(self, key: Hashable, job: JobKey) -> None:
        """Add a key of a job."""
        self._jobs[key] = job
        self._keys[job][key] = None
        self._counts.add(job)

    def remove(self, key: Hashable) -> None:
        """Remove a key."""
        job = self._jobs.pop(key)
        del self._keys[job][key]
        if not self._keys[job]:
            del self._keys[job]
        self._counts.remove(job)

    def least_wanted(self) -> Hashable:
        """Return the oldest key of a job that has most of them; where each job has one, the newest of all."""
        if self._counts.most == 1:
            return next(reversed(self._jobs))
        return next(iter(self._keys[self._counts.largest()]))


class KeysByUser:
    """The keys of each user, final ones apart."""

    def __init__(self) -> None:
        self._users: Counts[str] = Counts()
        self._keys: defaultdict[tuple[str, bool], KeysByJob] = defaultdict(KeysByJob)
        self._waiting: dict[bool, OrderedDict[Hashable, None]] = {False: OrderedDict(), True: OrderedDict()}

    def add(self, key: Hashable, job: JobKey, *, is_final: bool) -> None:
        """Add a key of a job."""
        self._users.add(job.user)
        self._keys[job.user, is_final].add(key, job)
        self._waiting[is_final][key] = None

    def remove(self, key: Hashable, job: JobKey, *, is_final: bool) -> None:
        """Remove a key."""
        self._users.remove(job.user)
        keys = self._keys[job.user, is_final]
        keys.remove(key)
        if not keys:
            del self._keys[job.user, is_final]
        del self._waiting[is_final][key]

    def least_wanted(self) -> Hashable:
        """Return a key of the user who has most of them, a final one only where that user has no others.

        Where each user has one it is the newest of all, a final one only where there are no others.
        """
        if self._users.most == 1:
            return next(reversed(self._waiting[False] or self._waiting[True]))
        user = self._users.largest()
        return self._keys[user, (user, False) not in self._keys].least_wanted()


class RecentByRun(Generic[Value]):
    """What was set last of at most `size` runs; a user with most of them loses the one that was set longest ago."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._n = 0
        self._users: Counts[str] = Counts()
        self._values: defaultdict[str, OrderedDict[RunKey, Value]] = defaultdict(OrderedDict)

    def get(self, run: RunKey) -> Value | None:
        """Return what was set of a run, or None."""
        return self._values[run.user].get(run) if run.user in self._values else None

    def __setitem__(self, run: RunKey, value: Value) -> None:
        """Set the value of a run; where there are too many, drop one."""
        values = self._values[run.user]
        if run not in values:
            self._n += 1
            self._users.add(run.user)
        values[run] = value
        values.move_to_end(run)
        if self._n > self._size:
            self._drop(self._users.largest())

    def _drop(self, user: str) -> None:
        self._values[user].popitem(last=False)
        if not self._values[user]:
            del self._values[user]
        self._users.remove(user)
        self._n -= 1
