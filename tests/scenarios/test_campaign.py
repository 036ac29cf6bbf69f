"""Sixty random schedules of faults, and five runs whose meters fail, on virtual time, other ones each time.

`make campaign` lives through more. The report's first lines name the seed;
`GRIDCHASE_CAMPAIGN_SEED=… pytest tests/scenarios/test_campaign.py` repeats it.
"""

import pytest

from tests.conftest import campaign_seed
from tests.scenarios.campaign.energy import run_energy_schedule
from tests.scenarios.campaign.machine import Outcome, run_campaign

N_PARTS, N_SCHEDULES = 2, 30
N_ENERGY_RUNS = 5


@pytest.mark.parametrize("part", range(N_PARTS))
def test_no_schedule_of_faults_strands_a_limit(part: int) -> None:
    outcomes: list[Outcome] = []
    run_campaign(campaign_seed() + part, N_SCHEDULES, outcomes.append)
    assert sum(outcome.n_writes for outcome in outcomes) > N_SCHEDULES


@pytest.mark.parametrize("part", range(N_ENERGY_RUNS))
def test_meters_that_fail_for_a_tenth_of_a_run_cost_a_hundredth_at_most(part: int) -> None:
    outcome = run_energy_schedule(campaign_seed() + part)
    assert outcome.violations == [], sorted(outcome.labels)
