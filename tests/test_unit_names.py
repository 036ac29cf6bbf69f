"""Every float says its unit: parameters, fields and functions of all our packages."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import controller
import gridchase
import policies
import publishers

UNITS: Final = (
    "_s", "_ns", "_w", "_j", "_g", "_kg", "_wh", "_kwh", "_ratio", "_c", "_k", "_hz",
    "_ratios", "_per_s", "_per_k", "_per_w", "_per_kwh", "_per_mwh", "_iterations", "_per_epoch",
    "_s2", "_j2", "_w2", "_k2", "_iterations2",  # squares
    "_epochs", "_octaves",  # doublings
    "_log",  # of a natural logarithm
    "_em",  # widths of letters, as in CSS
    "_ci",  # a half-width, in the unit of the name before it
)  # fmt: skip
NVML_UNITS: Final = ("_mw", "_mj")
NVML_FILES: Final = ("controller/gpu/nvml/",)
"""Milliwatts and millijoules end where NVML is spoken."""

ALLOWED: Final = {
    "value": "a signal's value, or a metric's: its unit is a field beside it, and the bus names it so",
    "values": "the same, many of them",
    "fallback": "stands in for a signal's value",
    "max_value": "c_max of Chase's eq. 6, in the signal's unit",
    "signal_value": "the signal now; its unit is the signal's",
    "value_at": "a signal's value",
    "value_now": "the same",
    "last_value_at": "the same",
    "value_at_end": "the same",
    "usual_value": "the same",
    "marginal_cost": "the cost of one more iteration, in the signal's unit times joules",
    "average_cost": "the mean cost of all iterations, the same",
    "cost_at_end": "the same, at the end of a run",
    "mean_power_cost": "power times signal, in W times the signal's unit",
    "avoided_cost": "the same, over one period",
    "at_least": "a cost, the same as what it is compared with",
    "cost_of": "what a run costs: g, money or kWh, as its signal says",
    "end_tangent": "a slope, whose unit is that of what is interpolated",
    "mean": "a signal's mean",
    "maximum": "a signal's maximum",
    "cost": "money; the currency is a field beside it",
    "baseline_cost": "the same",
    "saved_cost": "the same",
    "saved_cost_ci90": "the half-width of its interval, the same",
    "better_limit_cost": "the part of it that the better limit has saved, the same",
    "better_limit_cost_ci90": "the half-width of its interval, the same",
    "following_cost": "the part that following the grid has saved, the same",
    "following_cost_ci90": "the half-width of its interval, the same",
    "measuring_cost": "the part of measuring, the same",
    "measuring_cost_ci90": "the half-width of its interval, the same",
    "run_cost": "a job's objective, in J where energy and time are weighed",
    "cost_so_far": "the same, of a run that goes on",
    "eta": "the weight of both papers, 0 to 1",
    "pue": "power usage effectiveness, at least 1: a term of the field",
    "max_slowdown": "time over time at the prior limit, at least 1: fixed by the configuration",
    "price": "the same",
    "best_cost": "an objective's cost, whose unit depends on it",
    "probes_cost": "the same",
    "iterations_to_plan": "a count, or a mean of counts; rows of the replay call it so",
    "regret": "costs beyond an oracle's, in runs of that oracle",
    "regret_sd": "its standard deviation, the same",
    "zeus_cost": "an objective's cost, whose unit depends on it",
    "chase_cost": "the same",
    "costs": "the same, one for each limit",
    "epoch_cost": "the same, of an epoch",
    "cost_lower": "the lower end of its credible interval",
    "cost_upper": "the upper end",
    "least_cost": "the least of them",
    "score": "the same, weighed",
    "bound": "the same, at which a run is stopped",
    "money": "money; the currency is a field beside it",
    "last_metric": "a training's metric, in its own unit",
    "beta": "the bound of Zeus, in units of the best cost; above 1",
    "horizon": "how many recurrences a finding is worth",
    "epochs": "passes over the data; a mean has a fraction",
    "epochs_needed": "the same, to the target",
    "epochs_lower": "the lower end of their credible interval",
    "epochs_upper": "the upper end",
    "noise_variance": "of a natural logarithm",
    "best_factor": "what an observation still weighs after a further one, 0 to 1",
    "least": "the bound of a command-line option, in the unit of that option",
    "most": "the same",
    "rate": "how many times as fast as real time a simulated clock runs",
    "square": "a sum of squares, the same",
    "precision": "one over a variance of logarithms",
    "signal_energy": "energy times signal, in J times the signal's unit",
    "baseline_signal_energy": "the same",
    "following_signal_energy": "the same",
    "looks_signal_energy": "the same",
    "first_pass_signal_energy": "the same",
    "asked_signal_energy": "the same, of pauses that a run was asked for",
    "baseline": "what a run would have used: J, g or money",
    "baselines": "the same, of each part",
    "amounts": "what parts of a run have used, the same",
    "n_degrees": "degrees of freedom; those of a prior may have a fraction",
    "sum_log2": "a sum of squared differences of logarithms",
    "signal_time": "time times signal, in s times the signal's unit",
    "budget": "what a run may spend: g, money or kWh, as its signal says",
    "spent": "what a budget has paid: g, money or kWh, as its signal says",
    "budgeted": "the same, of one of them",
    "variance_of_mean": "of rates, 1/s²",
    "quantile": "of a distribution without unit",
    "student_quantile": "the same, of Student's t",
    "last_value": "a signal's value",
    "lower": "the lower end of a forecast's interval, in the signal's unit",
    "upper": "the upper end, the same",
    "count": "a number of iterations, with the fraction of the one under way",
    "number": "a plain number read from a file",
    "to_float": "a plain number made of whatever was given",
    "target": "the value that a training's metric is to reach, in the metric's own unit",
    "cost_bound": "the cost at which a run is stopped: an objective's, in J for energy and time weighed by eta",
    "late_cost_bound": "the same",
    "used": "an amount of a report's line: J, g or money",
    "saved": "the same",
    "ci90": "the half-width of its interval, the same",
    "amount": "the same, of any of them; or of work",
    "work": "how much of it an iteration is, in the unit that the training counts in",
    "total_work": "the same, of a run",
    "to_work": "the same, of an iteration",
    "plain_work": "the same, as it was given",
    "work_per_iteration": "the same, of a mean one",
    "half": "the half-width of an interval, the same",
    "error": "a standard error, in the unit of the value beside it",
}
FLOATS: Final = frozenset({"float", "Quantity", "Seconds", "Watts", "TimeS", "PowerW", "Amount", "Number"})
"""Annotations that are floats, by themselves, optional, or as items of an array or a sequence."""

CHART_FILES: Final = ("controller/web/charts/",)
CHART_PLACES: Final = {
    "xs", "x", "lefts", "rights", "ys", "bottoms", "lowers", "uppers", "ticks", "lone_half", "round_step",
}  # fmt: skip
"""Places on an axis of a chart, in the unit that the label of the axis says."""


def is_float(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is a float, perhaps one, or an array of them."""
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in FLOATS or name in {"float64", "float32", "floating"}
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_float(left) or is_float(right)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return is_float(first)
        case ast.Subscript(value=ast.Name(id="NDArray" | "list" | "Sequence" | "Final" | "ClassVar"), slice=item):
            return is_float(item)
        case ast.Constant(value=str(text)):
            return is_float(ast.parse(text, mode="eval").body)
        case _:
            return False


def floats_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each parameter, field and function that is a float."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield from ((argument.lineno, argument.arg) for argument in arguments if is_float(argument.annotation))
                if is_float(node.returns) and not node.name.startswith("__"):
                    yield node.lineno, node.name
            case ast.ClassDef():
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield from ((field.lineno, field.target.id) for _ in range(is_float(field.annotation)))
            case _:
                pass


def is_named_well(name: str, file: str) -> bool:
    """Return whether a name tells its unit, that it counts (`n_…`) or is a logarithm (`log_…`), or may do without."""
    bare = name.strip("_")
    if file.startswith(CHART_FILES) and bare in CHART_PLACES:
        return True
    units = UNITS + NVML_UNITS if file.startswith(NVML_FILES) else UNITS
    return f"_{bare}".endswith(units) or bare.startswith(("n_", "log_")) or bare in ALLOWED


def faults_of(source: str, file: str) -> list[str]:
    """Return what is named without a unit."""
    named = floats_of(ast.parse(source))
    return [f"{file}:{line}: {name} does not say its unit" for line, name in named if not is_named_well(name, file)]


SOURCES: Final = [
    (f"{package.__name__}/{path.relative_to(folder).as_posix()}", path)
    for package in (controller, gridchase, policies, publishers)
    for folder in [Path(str(package.__file__)).parent]
    for path in sorted(folder.rglob("*.py"))
]


@pytest.mark.parametrize(("file", "path"), SOURCES, ids=[file for file, _ in SOURCES])
def test_every_float_says_its_unit(file: str, path: Path) -> None:
    assert faults_of(path.read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(power: float) -> None: ...",
        "def f(*, limit: float | None = None) -> None: ...",
        "def power() -> float: ...",
        "class A:\n    timeout: Seconds = 3.0",
        "class A:\n    speeds: NDArray[np.float64]",
        "def f(power_mw: float) -> None: ...",
        "def f(x: 'float') -> None: ...",
    ],
)
def test_a_name_without_a_unit_is_found(source: str) -> None:
    assert len(faults_of(source, "controller/gpu/meter/energy_meter.py")) == 1


def test_milliwatts_exist_where_nvml_is_spoken() -> None:
    assert faults_of("def f(power_mw: float) -> None: ...", "controller/gpu/nvml/calls.py") == []


def test_what_is_allowed_is_used() -> None:
    names = {
        name.strip("_") for _, path in SOURCES for _, name in floats_of(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert set(ALLOWED) <= names
