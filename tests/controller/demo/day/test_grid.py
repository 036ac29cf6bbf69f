"""The grids of the demo: two whole days each, with their source and licence."""

import numpy as np
import pytest

from controller.demo.day.grid import list_zones, load_grid
from policies.providers.base import SignalFileError
from policies.vocabulary.units import DAY_S


def test_there_are_several_zones() -> None:
    assert list_zones() == ["DE", "GB", "US-CAISO", "US-ERCOT", "US-MISO"]


async def test_every_grid_has_two_whole_days_and_a_source() -> None:
    for zone in list_zones():
        grid = await load_grid(zone)
        assert grid.starts_s % DAY_S == 0
        assert grid.signal.starts_s[0] == grid.starts_s - DAY_S
        assert grid.signal.ends_s == grid.starts_s + DAY_S
        assert len(grid.signal) in {48, 96}
        assert len(set(np.diff(grid.signal.starts_s))) == 1
        assert (grid.signal.values > 0).all()
        assert grid.source
        assert grid.licence


async def test_the_day_of_great_britain_is_that_of_its_file() -> None:
    grid = await load_grid("GB")
    assert grid.date == "2023-06-04"
    assert "NESO Carbon Intensity API" in grid.licence
    assert grid.signal.mean(grid.starts_s, grid.starts_s + DAY_S) == pytest.approx(133.5)


async def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(SignalFileError, match="XX"):
        await load_grid("XX")
