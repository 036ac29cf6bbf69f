"""Makes every attempt of a hostile tenant, and writes the table: `python -m tests.live.hostile FILE [ATTEMPT …]`."""

import sys
import tempfile
from pathlib import Path

from tests.live.hostile.outcomes import STOPPED_BY, Usual, page
from tests.live.hostile.site_under_attack import description, site_under_attack
from tests.live.nvml_stub.fixtures import compile_stub

DURATION_S = 12.0


def main(file: Path, names: list[str]) -> int:
    """Make the attempts one after the other, and return how many were not stopped."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="gridchase-hostile-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with site_under_attack(folder, compile_stub(folder)) as site:
            usual_ratio, limits_w = site.watch(DURATION_S)
            for attempt in names:
                outcome = site.make_attempt(attempt, duration_s=DURATION_S, usual_slowdown_ratio=usual_ratio)
                outcomes.append(outcome)
                sys.stdout.write(f"{'FAILED' if outcome.faults else 'stopped'}: {description(attempt)} {outcome}\n")
                sys.stdout.flush()
            after_ratio, _ = site.watch(DURATION_S)
            sys.stdout.write(site.log_file.read_text()[-8_000:])
    usual = Usual(slowdown_ratio=usual_ratio, after_ratio=after_ratio, limit_w=limits_w[-1], duration_s=DURATION_S)
    file.write_text(page(outcomes, usual))
    return sum(bool(outcome.faults) for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or list(STOPPED_BY)) and 1)
