"""Some of a hostile tenant's attempts on the shipped site; `make hostile` makes all of them, for longer."""

from pathlib import Path

import pytest

from tests.live.hostile.outcomes import STOPPED_BY
from tests.live.hostile.site_under_attack import site_under_attack
from tests.live.hostile.tenant import ATTEMPTS

pytestmark = pytest.mark.live
DURATION_S = 1.5
QUICK = (
    *("publish_in_others_names", "clear_others_retained_messages", "leave_wills_in_others_names", "read_others_topics"),
    *("claim_the_victims_gpu_from_another_board", "claim_an_idle_gpu_with_an_invented_pid", "send_huge_messages"),
    *("flood_statuses_at_qos_1", "hold_half_open_connections_to_the_broker"),
)


def test_what_a_hostile_tenant_attempts_is_stopped(tmp_path: Path, nvml_library: Path) -> None:
    with site_under_attack(tmp_path, nvml_library) as site:
        usual, _ = site.watch(DURATION_S)
        made = [site.make_attempt(name, duration_s=DURATION_S, usual_slowdown_ratio=usual) for name in QUICK]
    assert {outcome.name: outcome.faults for outcome in made if outcome.faults} == {}


def test_every_attempt_is_in_the_table() -> None:
    assert set(STOPPED_BY) == set(ATTEMPTS)
