"""Paths of lines and bands: gaps where values are missing, and no more points than a screen can show."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

Place: TypeAlias = tuple[float, float]
"""From the left and from the bottom of the panel, 0 to 1; NaN where there is none."""
SIZE: Final = 1_000
"""Width and height of the stretched drawing that holds the paths."""
MAX_PLACES: Final = 1_600
"""More are thinned: four for each of so many columns as there are."""


def stepped(places: Sequence[Place], end_ratio: float | None) -> Iterator[Place]:
    """Yield the corners of a line whose values hold until the next; the last until `end_ratio`, if there is one."""
    for place, (x_ratio, y_ratio) in enumerate(places):
        yield x_ratio, y_ratio
        following = places[place + 1][0] if place + 1 < len(places) else end_ratio
        if following is not None:
            yield following, y_ratio


def pieces(places: Iterable[Place]) -> list[list[Place]]:
    """Return the parts of a line between its gaps."""
    found: list[list[Place]] = [[]]
    for place in places:
        if math.isnan(place[0]) or math.isnan(place[1]):
            found.append([])
        else:
            found[-1].append(place)
    return [piece for piece in found if piece]


def thinned(places: Sequence[Place]) -> list[Place]:
    """Return at most about `MAX_PLACES`: of each column the first, the least, the greatest and the last (M4).

    Jugel et al., "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014.
    """
    if len(places) <= MAX_PLACES:
        return list(places)
    n_columns = MAX_PLACES // 4
    kept: list[Place] = []
    for column in range(n_columns):
        begin, end = (len(places) * edge // n_columns for edge in (column, column + 1))
        inside = range(begin, end)
        chosen = {
            begin,
            min(inside, key=lambda place: places[place][1]),
            max(inside, key=lambda place: places[place][1]),
            end - 1,
        }
        kept += [places[place] for place in sorted(chosen)]
    return kept


def line_path(places: Iterable[Place]) -> str:
    """Return the data of a path through the places; a place between two gaps is a short dash."""
    return "".join(_through(piece) for piece in map(thinned, pieces(places)))


def area_path(lowers: Sequence[Place], uppers: Sequence[Place]) -> str:
    """Return the data of a path around what is between two lines at the same x; a gap of either is one of both."""
    nowhere = (math.nan, math.nan)
    known = [not (math.isnan(low[1]) or math.isnan(high[1])) for low, high in zip(lowers, uppers, strict=True)]
    sides = (
        pieces(place if is_known else nowhere for place, is_known in zip(side, known, strict=True))
        for side in (lowers, uppers)
    )
    return "".join(
        f"{_through([*thinned(above), *reversed(thinned(below))])}Z" for below, above in zip(*sides, strict=True)
    )


def _through(piece: Sequence[Place]) -> str:
    if len(piece) == 1:
        ((x_ratio, y_ratio),) = piece
        piece = [(x_ratio - 0.004, y_ratio), (x_ratio + 0.004, y_ratio)]
    return "M" + "L".join(f"{_number(SIZE * x_ratio)} {_number(SIZE * (1 - y_ratio))}" for x_ratio, y_ratio in piece)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
