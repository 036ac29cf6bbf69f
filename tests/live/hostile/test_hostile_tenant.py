"""Some of a hostile tenant's attempts on the shipped site; `make hostile` makes all of them, for longer."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.hostile.outcomes import STOPPED_BY
from tests.live.hostile.site_under_attack import SiteUnderAttack, site_under_attack
from tests.live.hostile.tenant import ATTEMPTS

pytestmark = pytest.mark.live
DURATION_S = 2.0
QUICK = [
    *("log_in_without_or_with_anothers_password", "publish_in_others_names", "clear_others_retained_messages"),
    *("leave_wills_in_others_names", "read_others_topics", "send_huge_messages", "break_the_protocol"),
    *("claim_the_victims_gpu_from_another_board", "hold_half_open_connections_to_the_broker"),
]
NEEDS_ROOT = {"touch_what_is_not_ours", "squat_the_locks", "plant_a_link_for_the_state_directory"}
"""Without root the tenant is the same user as the controller."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[SiteUnderAttack]:
    directory = tmp_path_factory.mktemp("hostile")
    with site_under_attack(directory, nvml_library) as site:
        yield site


@pytest.fixture(scope="module")
def usual_slowdown_ratio(site: SiteUnderAttack) -> float:
    """Return how much slower the honest job is without an attack."""
    return site.watch(DURATION_S)[0]


@pytest.mark.parametrize("name", QUICK)
def test_an_attempt_is_stopped(site: SiteUnderAttack, usual_slowdown_ratio: float, name: str) -> None:
    if name in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("the tenant would be the controller's own user: this test needs root")
    outcome = site.make_attempt(name, duration_s=DURATION_S, usual_slowdown_ratio=usual_slowdown_ratio)
    assert outcome.faults == []


def test_every_attempt_is_in_the_table() -> None:
    assert set(STOPPED_BY) == set(ATTEMPTS)
