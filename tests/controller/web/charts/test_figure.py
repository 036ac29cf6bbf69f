"""Charts in pages: whole whatever the data are, the same each time, readable without seeing them."""

import dataclasses
import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.web.charts.document import render_document, render_table
from controller.web.charts.drawing import EndLabel, apart, letters_of
from controller.web.charts.figure import MAX_ROWS, render_chart
from controller.web.charts.marks import (
    Axis,
    Band,
    Bars,
    Chart,
    Line,
    Mark,
    NameAxis,
    NumberAxis,
    Panel,
    Points,
    Rule,
    TimeAxis,
)
from controller.web.charts.svg_file import render_svg
from tests.controller.runtime.test_markup import HOSTILE, Reader
from tests.controller.web.charts.samples import every_mark

ANY = st.floats(allow_nan=True, allow_infinity=True)
PLACES = re.compile(r'(?:x|y|x1|x2|y1|y2|width|height)="(-?[\d.]+)%"')


def one(line: Line | Points | Band | Bars, *, is_log: bool = False) -> Chart:
    """Return a chart of one mark."""
    axis = NumberAxis(label="W", is_log=is_log)
    return Chart(title="t", words="w", x_axis=NumberAxis(label="x"), panels=[Panel(axis=axis, marks=[line])])


def line(ys: Sequence[float]) -> Line:
    """Return a line of values."""
    return Line(name="line", xs=range(len(ys)), ys=ys, colour="power")


def path_of(markup: str) -> str:
    """Return the data of the only line."""
    (data,) = re.findall(r'<path d="([^"]*)" class="line', markup)
    return str(data)


def test_a_chart_says_what_it_shows_and_has_its_data_as_a_table() -> None:
    page = Reader(render_chart(every_mark()))
    (image,) = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert image["aria-label"] == "Every mark. One of each kind."
    assert {"figcaption", "details", "table"} <= {name for name, _ in page.elements}
    headings = "x measured, g CO₂ per kWh expected, g CO₂ per kWh saved, W points, W"
    assert all(word in page.text for word in headings.split())
    shown = page.text.replace("\u00a0", " ")
    assert all(text in shown for text in ("1 to 4", "2 (1.5 to 2.5)", "first", "second", "g CO₂ per kWh"))


def test_a_chart_needs_no_script_no_style_of_its_own_and_no_server() -> None:
    page = Reader(render_document("t", [render_chart(every_mark())]))
    assert not {"script", "link", "img", "iframe", "object"} & {name for name, _ in page.elements}
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name in {"style", "src", "href"} or name.startswith("on")}


def test_the_same_data_make_the_same_page_and_file() -> None:
    assert render_chart(every_mark()) == render_chart(every_mark())
    ET.fromstring(render_svg(every_mark()))  # noqa: S314 — our own


def test_pages_do_not_depend_on_the_order_of_sets() -> None:
    program = (
        "from controller.web.charts.figure import *; from controller.web.charts.svg_file import *;"
        "from tests.controller.web.charts.samples import *; from tests.controller.web.test_report_page import *;"
        "print(render_chart(every_mark()), render_svg(every_mark()), page_of(entry('total'), days=month()))"
    )
    pages = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(pages) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_in_page_and_file(name: str) -> None:
    def kinds(chart: Chart) -> list[str]:
        return [kind for kind, _ in Reader(render_chart(chart)).elements]

    assert kinds(every_mark(name)) == kinds(every_mark("plain"))
    ET.fromstring(render_svg(every_mark(name)))  # noqa: S314 — our own


def test_a_missing_value_is_a_gap() -> None:
    assert path_of(render_chart(one(line([1, 2, math.nan, 2, 1])))).count("M") == 2
    band = Band(name="b", xs=range(5), lowers=[1, 1, math.nan, 1, 1], uppers=[2, 2, 2, 2, 2], colour="grid")
    (data,) = re.findall(r'<path d="([^"]*)" class="band', render_chart(one(band)))
    assert (data.count("M"), data.count("Z")) == (2, 2)


def test_a_stepped_value_holds_until_the_next_and_the_last_to_the_end() -> None:
    stepped = Line(name="a", xs=[0, 1, 2], ys=[0, 10], colour="power", is_stepped=True)
    places = [pair.split() for pair in path_of(render_chart(one(stepped)))[1:].split("L")]
    assert [x for x, _ in places] == ["0", "500", "500", "1000"]
    assert places[0][1] == places[1][1] != places[2][1] == places[3][1]


def test_many_values_keep_their_extremes_and_few_places() -> None:
    ys = [math.sin(place / 700) for place in range(100_000)]
    ys[31_415] = 5.0
    ys[71_828] = -7.0
    markup = render_chart(one(line(ys)))
    heights = [float(pair.split()[1]) for pair in path_of(markup)[1:].split("L")]
    assert len(heights) <= 1_600
    assert min(heights) == pytest.approx(1_000 * 0.05 / 1.1, abs=1)
    assert max(heights) == pytest.approx(1_000 * 1.05 / 1.1, abs=1)
    assert markup.count("<tr>") <= MAX_ROWS + 1
    assert "one in 500 of 100\u202f000 rows" in markup


@pytest.mark.parametrize("ys", [[], [math.nan], [math.inf, -math.inf]])
def test_without_data_it_is_said(ys: list[float]) -> None:
    assert "no data yet" in render_chart(one(line(ys)))
    assert "no data yet" in render_chart(one(line([-1.0, 0.0]), is_log=True))


@given(ys=st.lists(ANY, max_size=6), xs=st.lists(ANY, max_size=6), is_log=st.booleans(), is_stepped=st.booleans())
@example(ys=[], xs=[3.8e293], is_log=True, is_stepped=False)
@example(ys=[1e212, 1e-298], xs=[0.0], is_log=True, is_stepped=False)
@example(ys=[1e299, 1e-2], xs=[0.0], is_log=True, is_stepped=False)
@settings(max_examples=20)
def test_whatever_the_values_everything_has_a_place(
    ys: list[float], xs: list[float], is_log: bool, is_stepped: bool
) -> None:
    value = xs[0] if xs else math.nan
    marks: list[Mark] = [
        Line(name="l", xs=xs, ys=ys, colour="power", is_stepped=is_stepped, is_filled=True),
        Band(name="b", xs=xs, lowers=ys, uppers=ys, colour="grid"),
        Bars(name="a", xs=xs, ys=ys, lowers=ys, uppers=ys, colour="saved"),
        Points(name="p", xs=xs, ys=ys, lowers=ys, uppers=ys, lefts=xs, rights=xs, labels=["x"] * 6, colour="now"),
    ]
    base = line([1, 2])
    rules = [Rule(name="r", value=value, axis="x", colour="now"), Rule(name="r", value=value, axis="y", colour="now")]
    x_axes: tuple[Axis, ...] = (NumberAxis(label="x"), TimeAxis())
    for mark, x_axis in itertools.product([*marks, *rules], x_axes):
        panel = Panel(axis=NumberAxis(label="W", is_log=is_log), marks=[base, mark] if mark in rules else [mark])
        markup = render_chart(Chart(title="t", words="w", x_axis=x_axis, panels=[panel]))
        assert not re.search(r"\bnan\b|\binf\b", markup)
        assert all(-150 <= float(place) <= 250 for place in PLACES.findall(markup))


@pytest.mark.parametrize("value", [1e-249, 1e-290, 3.8e293])
def test_a_value_at_the_end_of_a_logarithmic_axis_has_room_beside_it(value: float) -> None:
    panel = Panel(axis=NumberAxis(is_log=True), marks=[line([1.0, value])])
    markup = render_chart(Chart(title="t", words="w", x_axis=TimeAxis(), panels=[panel]))
    assert not re.search(r"\bnan\b|\binf\b", markup)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_a_rule_without_a_place_is_not_drawn(value: float) -> None:
    panel = Panel(
        axis=NumberAxis(is_log=True), marks=[line([1, 2]), Rule(name="r", value=value, axis="y", colour="now")]
    )
    drawn, _, _ = render_chart(Chart(title="t", words="w", x_axis=TimeAxis(), panels=[panel])).partition('class="key"')
    assert "rule c-now" not in drawn


@pytest.mark.parametrize("beyond_s", [1.6e12, -1e12, math.inf])
def test_a_time_without_a_date_is_a_gap(beyond_s: float) -> None:
    times = Line(name="a", xs=[1.6e9, 1.6e9 + 3_600, beyond_s, 1.6e9 + 7_200], ys=[1, 2, 3, 4], colour="power")
    chart = Chart(title="t", words="w", x_axis=TimeAxis(), panels=[Panel(axis=NumberAxis(), marks=[times])])
    assert path_of(render_chart(chart)).count("M") == 2
    assert "2020-09-13" in render_chart(chart)


def test_times_that_are_all_beyond_are_said() -> None:
    times = Line(name="a", xs=[1.6e12, 1.7e12], ys=[1, 2], colour="power")
    chart = Chart(title="t", words="w", x_axis=TimeAxis(), panels=[Panel(axis=NumberAxis(), marks=[times])])
    assert "all times are before 1900 or after 2200" in render_chart(chart)
    assert "Jan" not in render_chart(chart)


def test_bars_of_days_are_as_wide_as_days() -> None:
    bars = Bars(name="used", xs=[1.6e9 + 86_400 * day for day in range(7)], ys=[1] * 7, colour="saved")
    chart = Chart(title="t", words="w", x_axis=TimeAxis(), panels=[Panel(axis=NumberAxis(), marks=[bars])])
    widths = {float(width) for width in re.findall(r'<rect x=[^>]* width="([\d.]+)%"', render_chart(chart))}
    assert min(widths) == pytest.approx(0.7 * 100 / 6, abs=0.01)


@pytest.mark.parametrize("name", ["x" * 64, "W" * 64, "x" * 16 + "W" * 16])
def test_a_long_name_is_cut_beside_its_line_and_whole_in_the_key(name: str) -> None:
    named = Line(name=name, xs=[0, 1], ys=[1, 2], colour="power")
    beside, _, key = render_chart(one(named)).partition('class="key"')
    (shown,) = re.findall(r'class="beside c-power"[^>]*>([^<]*)<', beside)
    assert shown.endswith("…")
    assert letters_of(shown) <= 26
    assert re.search(rf"<li>(?:(?!</li>).)*{name}", key)


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [-3.0, -3.0, -3.0], [1e-12, 1e-12]])
def test_a_single_value_is_in_the_middle(values: list[float]) -> None:
    heights = {pair.split()[1] for pair in path_of(render_chart(one(line(values))))[1:].split("L")}
    assert heights == {"500"}


@pytest.mark.parametrize(("ys", "floor"), [([300.0, 200.0], 1_000.0), ([-300.0, -200.0], 0.0)])
def test_an_area_shows_the_whole_value(ys: list[float], floor: float) -> None:
    filled = dataclasses.replace(line(ys), is_filled=True)
    drawn = render_chart(one(filled))
    (data,) = re.findall(r'<path d="([^"]*)" class="tint', drawn)
    heights = [abs(floor - float(pair.split()[1])) for pair in re.split("[ML]", data.rstrip("Z"))[1:]]
    assert sorted(heights) == pytest.approx([0, 0, 2 / 3 * 1_000 / 1.05, 1_000 / 1.05], abs=1)
    assert 'class="tint' not in render_chart(one(filled, is_log=True))


def test_a_line_alone_may_leave_out_zero() -> None:
    assert "gridline zero" in render_chart(one(dataclasses.replace(line([300.0, 200.0]), is_filled=True)))
    assert "gridline zero" not in render_chart(one(line([300.0, 200.0])))


def test_negative_bars_hang_from_zero() -> None:
    bars = Bars(name="saved", xs=[0, 1], ys=[3.0, -1.0], colour="saved")
    panel = Panel(axis=NumberAxis(has_zero=True), marks=[bars])
    chart = Chart(title="t", words="w", x_axis=NameAxis(names=["Mon", "Tue"]), panels=[panel])
    up, down = re.findall(r'<rect x=[^>]* y="([\d.]+)%"[^>]* height="([\d.]+)%"', render_chart(chart))
    assert float(up[0]) + float(up[1]) == pytest.approx(float(down[0]), abs=0.02)
    assert float(up[1]) == pytest.approx(3 * float(down[1]), abs=0.05)


def test_names_at_the_ends_of_lines_keep_apart_and_stay_inside() -> None:
    ends = [EndLabel(y_ratio, str(y_ratio), "power") for y_ratio in (0.97, 0.5, 0.98, 0.99)]
    heights = [label.y_ratio for label in apart(ends, 0.1)]
    assert heights == pytest.approx([0.5, 0.8, 0.9, 1.0])


def test_labels_of_points_keep_clear_of_each_other_and_of_lines() -> None:
    crowd = Points(name="p", xs=[0, 0.001, 1], ys=[0, 0, 1], labels=["alpha", "beta", "gamma"], colour="power")
    shown = render_chart(one(crowd))
    assert ("alpha" in shown, "gamma" in shown) == (True, True)
    walled = one(crowd)
    wall = [Rule(name="", value=x / 100 - 0.5, axis="x", colour="now") for x in range(200)]
    panel = Panel(axis=NumberAxis(), marks=[crowd, *wall])
    assert "alpha</text>" not in render_chart(Chart(title="t", words="w", x_axis=walled.x_axis, panels=[panel]))


def test_every_second_tick_is_left_out_on_a_phone_but_no_day() -> None:
    times = TimeAxis()
    day = Line(name="a", xs=[1_623_369_600.0 + 3_600 * hour for hour in range(40)], ys=range(40), colour="power")
    shown = render_chart(Chart(title="t", words="w", x_axis=times, panels=[Panel(axis=NumberAxis(), marks=[day])]))
    assert re.search(r'class="tick middle wide"[^>]*>06:00<', shown)
    assert re.search(r'class="tick middle"[^>]*>Sat<', shown)


def test_a_table_has_its_headings_beside_each_cell_for_phones() -> None:
    page = Reader(render_table(("job", "energy"), [("<b>", "3 kWh")], row_classes=["sum"]))
    cells = [attributes for name, attributes in page.elements if name == "td"]
    assert [cell["data-label"] for cell in cells] == ["job", "energy"]
    assert ("tr", {"class": "sum"}) in page.elements
    assert "<b>" in page.text
