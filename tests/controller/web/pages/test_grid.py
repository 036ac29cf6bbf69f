"""The page of the grid: the signal of each zone, and how far it can be trusted."""

from datetime import datetime

import msgspec
import pytest

from controller.web.pages.grid import render_grid
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found, Site, grid_signal, price_signal


def found(site: Site) -> Found:
    return Found(render_grid(site.state, now_s=site.now_s, zone=ZONE))


def test_each_signal_has_its_chart_and_what_is_known_of_it() -> None:
    site = Site()
    site.say_signal()
    site.say_signal(price_signal(NOW_S))
    text = found(site).text
    for part in (
        "DE: carbon intensity Now 340 g/kWh. Dirtiest about 450 g/kWh at Thu 09:00, cleanest about 230 g/kWh at 21:00.",
        "state fresh source Energy-Charts kind average: the mix of all power plants issued 15:20",
        "25 known, 25 forecast or estimated",
        "DE: price Now 0.09 EUR/kWh. Dearest about 0.2 EUR/kWh at Thu 09:00, cheapest about \u22120.02 EUR/kWh",
        "90 % band",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("state", "said"), [("stale", "too old: plans do without it"), ("held", "the last known value is held")]
)
def test_a_signal_that_is_not_fresh_says_so(state: str, said: str) -> None:
    site = Site()
    site.say_signal(
        msgspec.structs.replace(grid_signal(NOW_S), state=state, age_s=7_200.0, known_until_s=NOW_S - 7_200)
    )
    assert f"{said}, ended 2 h 00 min ago" in found(site).text
    assert "the source's own values end 13:20" in found(site).text


def test_without_a_signal_that_is_said() -> None:
    assert "plans do without one" in found(Site()).text


def test_hostile_sources_are_text() -> None:
    site = Site()
    site.say_signal(msgspec.structs.replace(grid_signal(NOW_S), source=HOSTILE[1], detail="".join(HOSTILE)))
    assert not {"img", "b"} & {name for name, _ in found(site).elements}


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_a_day_with_a_change_of_clocks_is_drawn(day: str) -> None:
    noon_s = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZONE).timestamp()
    site = Site(noon_s)
    site.say_signal(grid_signal(noon_s))
    assert "as of 12:00" in found(site).text
    assert "Now 340 g/kWh." in found(site).text
