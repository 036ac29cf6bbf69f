"""A chart with a mark of each kind."""

from controller.web.charts.marks import Band, Bars, Chart, Line, Mark, NumberAxis, Panel, Points, Rule


def every_mark(name: str = "measured") -> Chart:
    """Return a chart whose first line has a name."""
    marks: list[Mark] = [
        Band(name="90 %", xs=[0, 1, 2], lowers=[1, 1, 1], uppers=[3, 4, 3], colour="grid"),
        Line(name=name, xs=[0, 1, 2], ys=[2, 3], colour="grid", is_stepped=True, is_filled=True),
        Line(name="expected", xs=[0, 1, 2], ys=[2, 3, 2], colour="power", dash="dashed"),
        Rule(name="now", value=1.0, axis="x", colour="now"),
        Rule(name="prior limit", value=4.0, axis="y", colour="prior", dash="dotted"),
    ]
    points: list[Mark] = [
        Bars(name="saved", xs=[0, 1], ys=[2, -1], lowers=[1.5, -2], uppers=[2.5, 0], colour="saved"),
        Points(
            name="points", xs=[0, 1], ys=[2, 3], lefts=[-0.2, 0.8], rights=[0.2, 1.2], lowers=[1, 2], uppers=[3, 4],
            labels=["200 W", "250 W"], texts=["first", "second"], colour="power", shape="ring",
        ),
    ]  # fmt: skip
    return Chart(
        title="Every mark",
        words="One of each kind.",
        x_axis=NumberAxis(label="x"),
        panels=[
            Panel(axis=NumberAxis(label="g CO₂ per kWh"), marks=marks),
            Panel(axis=NumberAxis(label="W"), marks=points),
        ],
    )
