"""The command line where only the training side is installed, and where `controller` is somebody else's."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gridchase.cli.install import command_for, install_command

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
WITHOUT = "import sys; sys.modules[{package!r}] = None; from gridchase.__main__ import main; sys.exit(main())"
SOMEBODY_ELSES = "raise SystemExit('this is the code of a user')\n"


def gridchase(*arguments: str, without: str = "", path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `gridchase` without a package, or with a folder that comes before all others."""
    program = ("-c", WITHOUT.format(package=without)) if without else ("-m", "gridchase")
    return subprocess.run(
        [sys.executable, *program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": f"{path}:{ROOT}" if path else str(ROOT), "PYTHONSAFEPATH": "1"},
    )


@pytest.fixture(params=["controller.py", "controller/__init__.py", "policies.py"])
def users_own(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a module of the user's that has one of our names, and must not be run."""
    module = tmp_path / request.param
    module.parent.mkdir(exist_ok=True)
    module.write_text(SOMEBODY_ELSES)
    return tmp_path


@pytest.mark.parametrize("package", ["rich", "aiohttp", "numpy"])
def test_gridchase_says_what_is_missing_and_how_to_get_it(package: str) -> None:
    result = gridchase("check", without=package)
    assert result.returncode == 2
    assert f"{package} is not installed" in result.stderr
    assert result.stderr.endswith(f": {install_command()}\n")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["up", "controller", "demo", "replay"])
def test_without_the_controller_its_verbs_say_how_to_get_it(verb: str) -> None:
    result = gridchase(verb, "--some-option", without="controller")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"gridchase {verb}: this is the training side alone: {install_command()}\n"


def test_the_help_without_the_controller_offers_what_is_there() -> None:
    result = gridchase("--help", without="controller")
    assert (result.returncode, result.stderr) == (0, "")
    verbs, _, absent = result.stdout.partition("Not here: ")
    assert "doctor" in verbs
    assert "simulated GPU" not in verbs
    assert {"demo,", "up,", "replay,"} <= set(absent.split())
    assert absent.endswith(f"; this is the training side alone: {install_command()}\n")
    assert gridchase("fly", without="controller").stderr.endswith("there is no verb 'fly'; there are doctor, run\n")


def test_with_what_the_extra_of_the_policy_service_brings_its_verb_works() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = [
        {re.split(r"[\[<>=]", line)[0] for line in extras[f"{who}-dependencies"]} for who in ("controller", "policy")
    ]
    others = names[0] - names[1] - {"gridchase"}
    modules = {{"nvidia-ml-py": "pynvml"}.get(name, name) for name in others}
    assert "amqtt" in modules
    script = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); from gridchase.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", script, "policy", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'gridchase[controller]'"),
        (
            {"url": "file:///a%20b/g", "dir_info": {"editable": True}},
            "pip install '/a b/g[controller]' '/a b/g/controller'",
        ),
        (
            {"url": "file:///dist/gridchase-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install --find-links /dist 'gridchase[controller]'",
        ),
        (
            {"url": "https://git.example/g", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            (
                "pip install 'gridchase[controller] @ git+https://git.example/g@0a1b' "
                "'gridchase-controller @ git+https://git.example/g@0a1b#subdirectory=controller'"
            ),
        ),
    ],
)
def test_the_command_installs_from_where_gridchase_came(origin: dict[str, object] | None, command: str) -> None:
    assert command_for(None if origin is None else json.dumps(origin)) == command


def test_doctor_runs_no_code_of_a_user_whose_module_has_our_name(users_own: Path) -> None:
    result = gridchase("doctor", "--job", "j", "--broker", "mqtt://127.0.0.1:9", path=users_own)
    assert result.returncode == 1
    assert "nothing listens at 127.0.0.1:9" in result.stdout
    assert not result.stderr


def test_the_training_side_runs_no_code_of_a_user_whose_module_has_our_name(users_own: Path) -> None:
    script = "from gridchase import publish_iterations; print(*publish_iterations(range(3), job='j'))"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": f"{users_own}:{ROOT}", "GRIDCHASE_BROKER": "mqtt://127.0.0.1:9"},
    )
    assert (result.returncode, result.stdout) == (0, "0 1 2\n")


@pytest.mark.parametrize("module", ["controller.py", "controller/__init__.py"])
def test_another_package_called_controller_is_told_and_not_run(module: str, tmp_path: Path) -> None:
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).write_text(SOMEBODY_ELSES)
    result = gridchase("up", path=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"the package `controller` here is another one, {tmp_path / module}" in result.stderr
    assert result.stderr.endswith(f"in an environment of its own: {install_command()}\n")


def test_importing_loads_neither_the_controller_nor_what_publishing_needs() -> None:
    controller = ("asyncio", "html", "numpy", "aiohttp", "aiomqtt", "amqtt", "pynvml", "rich", "controller", "policies")
    publishing = ("paho", "ssl", "_hashlib", "email", "http.client", "urllib.request", "tempfile")
    script = f"""
import sys
from gridchase import publish_iterations
print([name for name in {(*controller, *publishing)!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"


def test_run_starts_a_script_whose_neighbours_have_our_names(users_own: Path) -> None:
    script = users_own / "train.py"
    script.write_text("from gridchase import publish_iterations\nprint(*publish_iterations(range(3)))\n")
    options = ("--broker", "mqtt://127.0.0.1:9")
    result = gridchase("run", *options, "--", sys.executable, str(script), path=users_own)
    assert (result.returncode, result.stdout) == (0, "0 1 2\n")
    assert "nothing listens at 127.0.0.1:9" in result.stderr
