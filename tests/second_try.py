"""Runs pytest, then tries a few failed tests once more, each alone in a fresh process.

`python -m tests.second_try`, then pytest's arguments. For tests on the real clock only. A test that passes the second
time is *flaky*: it is named at the end and in `build/flaky.txt`, and is to be mended in the next change. More than
`MAX_FAILURES` failures, a crashed worker and an error of the collection are no chance: they fail at once.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

MAX_FAILURES: Final = 5
FLAKY_FILE: Final = Path("build/flaky.txt")
_TIMEOUT_S: Final = 600.0


@dataclass
class Outcomes:
    """What failed, as a plugin of pytest is told.

    Attributes:
        failures: the last line of each failed test's report, by the test's id.
        is_broken: a worker crashed, or tests could not be collected.
    """

    failures: dict[str, str] = field(default_factory=dict)
    is_broken: bool = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure: of a test, or before or after it."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(getattr(crash, "message", None) or report.longreprtext).strip() or "failed"
            self.failures.setdefault(report.nodeid, reason.splitlines()[0])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that tests could not be collected."""
        self.is_broken |= report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Note that a worker of xdist crashed."""
        self.is_broken |= error is not None


def may_try_again(exit_code: int, outcomes: Outcomes) -> bool:
    """Return whether what failed may have failed by chance."""
    is_failure = exit_code == pytest.ExitCode.TESTS_FAILED
    return is_failure and not outcomes.is_broken and 0 < len(outcomes.failures) <= MAX_FAILURES


def passes_alone(test: str) -> bool:
    """Run one test in a process of its own, with its output shown."""
    try:
        code = subprocess.run([sys.executable, "-m", "pytest", test], timeout=_TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return False
    return code == 0


def main(arguments: Sequence[str]) -> int:
    """Run pytest, then the second tries; return the exit code."""
    outcomes = Outcomes()
    exit_code = int(pytest.main(list(arguments), plugins=[outcomes]))
    if not may_try_again(exit_code, outcomes):
        return exit_code
    print(f"\n{len(outcomes.failures)} failed: each is tried once more, alone", flush=True)
    passed = {test: passes_alone(test) for test in outcomes.failures}
    flaky = [
        f"flaky: {test}: failed ({reason}), then passed alone"
        for test, reason in outcomes.failures.items()
        if passed[test]
    ]
    if flaky:
        FLAKY_FILE.parent.mkdir(parents=True, exist_ok=True)
        with FLAKY_FILE.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in flaky)
    print("\n".join(["", *flaky, *(f"failed twice: {test}" for test in passed if not passed[test])]), flush=True)
    return 0 if all(passed.values()) else exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
