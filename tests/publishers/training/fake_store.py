"""A store of a process group, as torch.distributed has: in this process, and it can fail."""

from collections import Counter


class FakeStore:
    """One key-value service for all ranks; `is_gone`: its host has gone."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.counters: Counter[str] = Counter()
        self.is_gone = False

    def set(self, key: str, value: str, /) -> None:
        self._touch()
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self._touch()
        return self.values[key]  # the real one would wait: nobody may ask for what is not there

    def add(self, key: str, amount: int, /) -> int:
        self._touch()
        self.counters[key] += amount
        return self.counters[key]

    def check(self, keys: list[str], /) -> bool:
        self._touch()
        return all(key in self.values or key in self.counters for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self._touch()
        present = self.values.get(key, b"")
        if present == expected.encode():
            self.values[key] = present = desired.encode()
        return present

    def _touch(self) -> None:
        if self.is_gone:
            raise RuntimeError("Connection reset by peer")
