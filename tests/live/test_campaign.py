"""Three random schedules of faults with real processes, other ones each time; `make campaign` lives through more.

The report's first lines name the seed; `GRIDCHASE_CAMPAIGN_SEED=… pytest tests/live/test_campaign.py` repeats it.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import campaign_seed
from tests.live.campaign.schedule import LiveOutcome, compile_disk, run_live_schedule

pytestmark = pytest.mark.live
N_PARTS, N_SCHEDULES = 1, 3


@pytest.mark.parametrize("part", range(N_PARTS))
def test_no_fault_strands_a_limit_of_a_real_process(part: int, nvml_library: Path, tmp_path: Path) -> None:
    disk_library = compile_disk(tmp_path)

    def run(seed: int) -> LiveOutcome:
        return run_live_schedule(seed, tmp_path / f"schedule-{seed}", nvml_library, disk_library)

    first = campaign_seed() + N_SCHEDULES * part
    with ThreadPoolExecutor(N_SCHEDULES) as threads:  # they wait, for conditions and for the controller's start
        outcomes = list(threads.map(run, range(first, first + N_SCHEDULES)))
    assert "\n\n".join(str(outcome) for outcome in outcomes if outcome.violations) == ""
