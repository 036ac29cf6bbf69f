"""The two wheels and the source of both: built as for a release, and installed where nothing of the controller is."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.conftest import made_once

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ("build", "setuptools", "twine")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(None in map(find_spec, TOOLS), reason=f"needs {', '.join(TOOLS)}: pip install -e '.[dev]'"),
]
BASE: Final = ("paho-mqtt", "msgpack", "msgspec")
TRAINING: Final = """
from gridchase import publish_iterations
print(*publish_iterations(range(3), job="j", broker="mqtt://127.0.0.1:9"))
"""


def run(*words: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program, without the tree in its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def python(*words: str | Path, cwd: Path) -> str:
    """Run a module of this environment to its good end; return what it says."""
    result = run(sys.executable, "-m", *words, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tracked(*folders: str) -> set[str]:
    """Return the files of these folders that belong to their packages."""
    outside = {"controller/pyproject.toml", "controller/LICENSE"}
    names = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*")}
    return {
        name for name in names if (ROOT / name).is_file() and "__pycache__" not in name and "/build/" not in name
    } - outside


def packed(wheel: Path) -> set[str]:
    """Return the files of a wheel's packages."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and both wheels made of it."""
    return made_once(tmp_path_factory, "distributions", _build) / "dist"


def _build(directory: Path) -> None:
    tree, out = directory / "tree", directory / "dist"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=ignored)
    python("build", "--no-isolation", "--outdir", out, cwd=tree)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(directory, filter="data")
    source = next(directory.glob("gridchase-*"))
    python("build", "--no-isolation", "--wheel", "--outdir", out, "controller", cwd=source)


@pytest.fixture(scope="module")
def wheels(dist: Path) -> tuple[Path, Path]:
    """Return the wheel of the training side, and that of the controller."""
    return next(dist.glob("gridchase-*.whl")), next(dist.glob("gridchase_controller-*.whl"))


@pytest.fixture
def environment(wheels: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return an environment with the training side, and nothing else but what that needs."""
    home = tmp_path / "environment"
    python("venv", "--without-pip", home, cwd=tmp_path)
    packages = site_packages(home)
    for name in BASE:
        for path in {Path(file.parts[0]) for file in distribution(name).files or () if ".." not in file.parts}:
            (packages / path).symlink_to(str(distribution(name).locate_file(path)))
    (packages / "policies").mkdir()
    (packages / "policies" / "__init__.py").write_text("WHOSE = 'the user'\n")
    install(home, wheels[0])
    return home


def site_packages(home: Path) -> Path:
    """Return where an environment has its packages."""
    return next(home.glob("lib/python*/site-packages"))


def install(home: Path, wheel: Path) -> None:
    """Install a wheel without what it needs."""
    pip = ("pip", "--disable-pip-version-check", "--python", home / "bin" / "python", "install")
    python(*pip, "--quiet", "--no-index", "--no-deps", "--no-compile", wheel, cwd=home)


def test_the_wheel_of_the_training_side_has_its_two_packages(wheels: tuple[Path, Path]) -> None:
    assert packed(wheels[0]) == tracked("gridchase", "publishers")


def test_the_wheel_of_the_controller_has_the_rest(wheels: tuple[Path, Path]) -> None:
    assert packed(wheels[1]) == tracked("controller", "policies")


def test_the_index_would_take_all_three(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert len(files) == 3
    python("twine", "check", "--strict", *files, cwd=dist)


def test_each_wheel_has_the_licence(wheels: tuple[Path, Path]) -> None:
    for wheel in wheels:
        (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/LICENSE"))
        assert zipfile.ZipFile(wheel).read(name) == (ROOT / "LICENSE").read_bytes()


def test_both_have_one_version_and_name_it() -> None:
    base: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    other: dict[str, Any] = tomllib.loads((ROOT / "controller" / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert other["version"] == base["version"]
    assert other["requires-python"] == base["requires-python"]
    assert other["dependencies"] == [f"gridchase=={base['version']}"]
    for extra in ("controller", "policy"):
        assert f"gridchase-controller=={base['version']}" in base["optional-dependencies"][extra]


def test_the_base_install_trains_and_checks(environment: Path) -> None:
    binaries = environment / "bin"
    trained = run(binaries / "python", "-c", TRAINING, cwd=environment)
    assert (trained.returncode, trained.stdout) == (0, "0 1 2\n")
    doctor = run(binaries / "gridchase", "doctor", "--job", "j", "--broker", "mqtt://127.0.0.1:9", cwd=environment)
    assert doctor.returncode == 1
    assert "nothing listens at 127.0.0.1:9" in doctor.stdout
    refused = run(binaries / "gridchase", "up", cwd=environment)
    assert refused.returncode == 2
    assert "pip install --find-links " in refused.stderr


def test_a_package_of_the_users_stays_and_the_controller_is_not_there(environment: Path) -> None:
    script = "import policies, importlib.util as u; print(policies.WHOSE, u.find_spec('controller'))"
    assert run(environment / "bin" / "python", "-c", script, cwd=environment).stdout == "the user None\n"


def test_the_controller_comes_on_top(environment: Path, wheels: tuple[Path, Path]) -> None:
    shutil.rmtree(site_packages(environment) / "policies")
    install(environment, wheels[1])
    ours = distribution("msgspec").locate_file("")  # what the controller needs: from this environment, after its own
    (site_packages(environment) / "needed.pth").write_text(f"{ours}\n")
    for words in (["--version"], ["check", "--help"], ["policy", "jobs", "--help"], ["replay", "profile", "--help"]):
        result = run(environment / "bin" / "gridchase", *words, cwd=environment)
        assert (result.returncode, result.stderr) == (0, "")
    script = "import controller; print(controller.__file__)"
    shown = run(environment / "bin" / "python", "-c", script, cwd=environment).stdout
    assert shown.startswith(str(site_packages(environment)))
