"""What the documents say is so: links, fields, keys, commands, reasons, numbers, and the unit file."""

import ast
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from controller import config
from controller.accounting import ranks
from controller.control import profile_store
from controller.gpu import power_limiter
from controller.gpu.journal.entry import READBACK_TOLERANCE_W
from controller.gpu.run_dir import RUN_DIR
from controller.runs import gpu_claims, run
from controller.signal import feed as signal_feed
from controller.signal import grid_message as signal_news
from controller.web.config import WebConfig
from gridchase.cli.verb import command_line
from policies.forecasting import MAX_LAG_S
from policies.planning import required_rate, signal_outlook
from policies.profiling import drift, measurement, prior_curve, settings, sweep
from policies.providers.base import ProviderSettings
from policies.service.config import PolicyConfig
from publishers.messages import reports, topics, training
from publishers.messages.reasons import MAX_SHORT, SHORT_REASONS
from publishers.messages.topics import Topics
from publishers.training import worker as sender
from publishers.training.iterations import chunk, recorder

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "deploy" / "README.md",
]
TOPICS = (ROOT / "docs" / "topics.md").read_text(encoding="utf-8")
HOW_IT_WORKS = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
SAFETY = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "gridchase-controller.service"
OBJECTIVES = ("slowdown", "deadline", "budget")
"""Those whose codes are made of their names."""
MAX_README_LINES, MAX_COLUMNS = 200, 80
NO_KEYS = {"py", "json", "toml", "service", "md", "token", "sqlite"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = _without_fences(page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not _leads_somewhere(page, link)] == []


def test_the_topic_tables_name_exactly_the_fields_of_the_records() -> None:
    records = {
        name: list(kind.__struct_fields__)
        for module in (training, reports)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_fields__
    }
    assert {name: sorted(fields) for name, fields in _tables().items()} == {
        name: sorted(fields) for name, fields in records.items()
    }


def test_the_overview_names_every_topic_there_is() -> None:
    roots = ("`host/", "`user/", "`node/", "`grid/")
    named = {cells[0].strip("`") for cells in _rows(TOPICS) if cells[0].startswith(roots)}
    run = "user/<user>/job/<job>/run/<run>"
    assert named == {
        *(f"host/<boot_id>/{run}/rank/<rank>/{leaf}" for leaf in topics._RANK_LEAVES),
        *(f"{run}/{leaf}" for leaf in topics._RUN_LEAVES),
        *(f"{run}/node/<node>/{leaf}" for leaf in topics._PART_LEAVES),
        *(f"user/<user>/job/<job>/{leaf}" for leaf in topics._JOB_LEAVES),
        "node/<node>/status",
        "node/<node>/plan/<user>/<job>/<run>",
        *(f"node/<node>/gpu/<uuid>/{leaf}" for leaf in topics._GPU_LEAVES),
        *(f"grid/<zone>/{leaf}" for leaf in topics._GRID_LEAVES),
    }
    for topic in named:
        assert Topics().parse(f"gridchase/v1/{re.sub(r'<[a-z_]+>', '0', topic)}") is not None


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_each_page_says_in_its_first_lines_who_it_is_for(page: Path) -> None:
    title, blank, reader, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert not blank
    assert re.match(r"For [^.]+\.$", reader)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_of_the_configuration_that_is_mentioned_exists(page: Path) -> None:
    known = {
        f"{section}.{key}"
        for defaults in (config.Config(), PolicyConfig(), WebConfig())
        for section in defaults.__struct_fields__
        for key in getattr(defaults, section).__struct_fields__
    }
    sections = {key.split(".")[0] for key in known}
    mentioned = re.findall(rf"(?<![\w./])({'|'.join(sections)})\.([a-z][a-z_]*)", page.read_text(encoding="utf-8"))
    assert {f"{section}.{key}" for section, key in mentioned if key not in NO_KEYS} - known == set()


def test_the_defaults_in_the_documents_are_the_defaults() -> None:
    checked = 0
    for cells in _rows(CONFIGURATION):
        keys, defaults = (re.findall(r"`([^`]*)`", cell) for cell in cells[:2])
        if not keys or len(keys) != len(defaults) or not re.fullmatch(r"[a-z]+\.[a-z_]+", keys[0]):
            continue
        for key, default in zip(keys, defaults, strict=True):
            section, name = key.split(".")
            owner = next(one for one in (config.Config(), PolicyConfig(), WebConfig()) if hasattr(one, section))
            assert tomllib.loads(f"x = {default}")["x"] == getattr(getattr(owner, section), name)
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_gridchase_command_is_understood(page: Path) -> None:
    commands = list(_commands(page.read_text(encoding="utf-8")))
    assert [shlex.join(arguments) for arguments in commands if _exit_code(arguments) != 0] == []


def test_the_readme_is_short_and_what_it_prints_fits_a_terminal() -> None:
    assert len(README.splitlines()) <= MAX_README_LINES
    course = README.split("<!-- demo output -->")[1].split("<!-- /demo output -->")[0]
    assert [line for line in course.splitlines() if len(line) > MAX_COLUMNS] == []


def test_the_readme_shows_each_verb_that_there_is() -> None:
    shown = {arguments[0] for arguments in _commands(README)}
    assert {"demo", "up", "check", "controller", "policy", "restore"} <= shown


def test_every_reason_has_a_short_form() -> None:
    section = HOW_IT_WORKS.split("## Reason codes")[1].split("### ")[0]
    explained = {cells[0].strip("`") for cells in _rows(section) if cells[0].startswith("`")}
    assert set(SHORT_REASONS) == explained
    assert [code for code, short in SHORT_REASONS.items() if len(short) > MAX_SHORT] == []


def test_the_reasons_that_are_explained_are_those_that_are_given() -> None:
    folders = ("accounting", "control", "gpu", "runs", "signal")
    sources = [
        *(path for folder in folders for path in (ROOT / "controller" / folder).rglob("*.py")),
        *(path for folder in ("vocabulary", "planning") for path in (ROOT / "policies" / folder).rglob("*.py")),
    ]
    given = {reason for source in sources for reason in _reasons(ast.parse(source.read_text(encoding="utf-8")))}
    section = HOW_IT_WORKS.split("## Reason codes")[1].split("### ")[0]
    explained = {cells[0].strip("`") for cells in _rows(section) if cells[0].startswith("`")}
    assert explained == given | set(gpu_claims._REASONS) | set(run._END_REASONS.values()) | set(
        signal_feed.DEGRADED_REASONS.values()
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SAFETY, f"every {power_limiter.RECONCILE_S:g} s, the limit is read back"),
        (SAFETY, f"within {READBACK_TOLERANCE_W:g} W"),
        (SAFETY, f"at most {recorder.MAX_BUFFERED:,} iterations"),
        (SAFETY, f"at most {sender.CLOSE_TIMEOUT_S:g} s for its last messages"),
        (HOW_IT_WORKS, f"or no new one for {ranks.GATHER_S:g} s"),
        (HOW_IT_WORKS, f"{measurement.MIN_ITERATIONS:g} iterations and {measurement.MIN_READINGS} readings"),
        (HOW_IT_WORKS, f"after {measurement.MAX_ITERATIONS:g} iterations"),
        (HOW_IT_WORKS, f"({measurement.PRIOR_RATIO * measurement.MAX_ITERATIONS:g} at the prior limit)"),
        (HOW_IT_WORKS, f"rounded to {settings.GRID_W:g} W"),
        (HOW_IT_WORKS, f"{sweep.RISEN_TWICE - 1:.0%} more twice".replace("%", " %")),
        (HOW_IT_WORKS, f"or {sweep.RISEN_ONCE - 1:.0%} more once".replace("%", " %")),
        (HOW_IT_WORKS, f"agree to {prior_curve.AGREES_RATIO:.0%},".replace("%", " %")),
        (HOW_IT_WORKS, f"{profile_store.MAX_PROFILES} curves are kept"),
        (HOW_IT_WORKS, f"an allowance of {drift.ALLOWANCE_DEVIATIONS:g} and a bound of {drift.BOUND_DEVIATIONS:g}"),
        (HOW_IT_WORKS, f"a window adds {drift.MOST_DEVIATIONS:g} at most"),
        (HOW_IT_WORKS, f"as the last ones were, {signal_outlook.MAX_DAYS} at most"),
        (HOW_IT_WORKS, f"at most {required_rate.MAX_RESERVE:g} and at most a tenth"),
        (TOPICS, f"at most {chunk.MAX_IN_SEGMENT:,} iterations"),
        (TOPICS, f"{training.MAX_ITERATIONS:,} are accepted"),
        (TOPICS, f"at most {signal_news.MAX_PUBLISHED:,} are published"),
    ],
)
def test_numbers_in_the_documents_are_those_of_the_code(text: str, sentence: str) -> None:
    assert " ".join(sentence.split()) in " ".join(text.replace("\n", " ").split())


def test_numbers_in_words_are_those_of_the_code() -> None:
    safety, how_it_works = (" ".join(text.split()) for text in (SAFETY, HOW_IT_WORKS))
    assert (power_limiter.MAX_REVERSIONS, required_rate.SETTLE_S, required_rate.RESERVE_SHARE) == (3, 21_600, 0.1)
    assert (ProviderSettings().max_age_s, MAX_LAG_S) == (7_200, 86_400)
    assert "written again, three times" in safety
    assert (measurement.WINSOR_DEVIATIONS, drift.REST_RATIO) == (3, 10)
    assert "drawn in to three standard deviations" in how_it_works
    assert "not sooner than ten times what the first sweep took" in how_it_works
    assert "ceased to hold more than two hours ago (`max_age_s`)" in safety
    assert "is settled over six hours" in how_it_works
    assert "at most a tenth of the allowed slowdown" in how_it_works


def test_every_metric_that_is_mentioned_is_served() -> None:
    sources = [ROOT / "controller" / "http" / "health.py", ROOT / "controller" / "web" / "routes.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in sources)
    mentioned = {name for page in PAGES for name in re.findall(r"`(gridchase_\w+)`", page.read_text(encoding="utf-8"))}
    assert mentioned
    assert {name for name in mentioned if f'"{name.removesuffix("_total")}"' not in source} == set()


def test_the_unit_file_starts_the_controller_and_gives_back_what_a_killed_one_left() -> None:
    options = _unit_options()
    start, stop = (command_line().parse_args(shlex.split(options[key][0])[1:]) for key in ("ExecStart", "ExecStopPost"))
    assert start.config == stop.config == Path("/etc/gridchase/controller.toml")
    assert (shlex.split(options["ExecStart"][0])[1], shlex.split(options["ExecStopPost"][0])[1]) == (
        "controller",
        "restore",
    )
    assert float(options["TimeoutStopSec"][0]) > 2 * power_limiter.STOP_TIMEOUT_S
    assert options["RestartPreventExitStatus"] == ["2"]
    assert options["CapabilityBoundingSet"] == ["CAP_SYS_ADMIN"]


def test_the_unit_file_keeps_its_state_where_root_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert config.default_state_dir() == Path("/var/lib") / _unit_options()["StateDirectory"][0]
    assert Path("/run") / _unit_options()["RuntimeDirectory"][0] == RUN_DIR, "also where /run cannot be written"
    assert {_unit_options()[f"{kind}DirectoryMode"][0] for kind in ("State", "Runtime")} == {"0700"}


def test_what_the_unit_file_says_it_does_not_set_is_not_set() -> None:
    named = re.findall(r"^# Not set: (.*?)\. ", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    relaxed = {option.strip().split("=")[0] for names in named for option in names.split(",")}
    assert relaxed
    assert relaxed.isdisjoint(_unit_options())


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in _anchors(target.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _tables() -> dict[str, list[str]]:
    """Return the fields that the page of topics lists for each record."""
    sections = re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", TOPICS, re.MULTILINE | re.DOTALL)
    return {name: [c[0].strip("`") for c in _rows(body) if c[0].startswith("`")] for name, body in sections}


def _rows(text: str) -> list[list[str]]:
    """Return the cells of every row of a page's tables."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _commands(text: str) -> Iterator[list[str]]:
    """Return the arguments of each `gridchase …` in blocks and spans of code."""
    blocks = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _without_fences(text))
    for line in [*blocks, *spans]:
        command = re.match(r"\s*(?:\$ |# )?(?:sudo )?(?:[\w./]*/)?gridchase ((?:--)?[a-z].*)", line)
        if command and not re.search("[┃│]", line):
            yield shlex.split(command[1].split(" > ")[0], comments=True)


def _exit_code(arguments: list[str]) -> int:
    """Return how the command line ends over these arguments: 0 where it understands them."""
    try:
        command_line().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _reasons(tree: ast.AST) -> Iterator[str]:
    """Return the reason codes in a module: arguments, and variables, of that name."""
    for node in ast.walk(tree):
        for value in _values_of_reason(node):
            yield from _texts(value)


def _values_of_reason(node: ast.AST) -> list[ast.expr]:
    """Return what stands at a node for a reason."""
    match node:
        case (
            ast.keyword(arg="reason", value=value)
            | ast.Call(func=ast.Name(id="_decision"), args=[_, _, _, value, _])
            | ast.Assign(targets=[ast.Name(id="reason")], value=value)
            | ast.Call(func=ast.Attribute(attr="_highest"), args=[_, value, _])
            | ast.Call(
                func=ast.Attribute(attr="_notify" | "_tell" | "_report" | "_observe_only" | "_restore" | "_give_back"),
                args=[value, *_],
            )
        ):
            return [value]
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            pairs = zip(names, values, strict=True)
            return [value for name, value in pairs if isinstance(name, ast.Name) and name.id == "reason"]
        case _:
            return []


def _texts(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body)
            yield from _texts(orelse)
        case ast.FormattedValue(value=ast.Name(id="name")):  # of an objective
            yield from OBJECTIVES
        case ast.FormattedValue(value=value):
            yield from _texts(value)
        case ast.JoinedStr(values=values):
            yield from map("".join, itertools.product(*map(_texts, values)))
        case _:
            pass


def _unit_options() -> dict[str, list[str]]:
    """Return the options of the unit file; some stand there twice."""
    options: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, option = line.partition("=")
            options.setdefault(key, []).append(option)
    return options
