"""The command line where only the training side is installed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
WITHOUT = "import sys; sys.modules[{package!r}] = None; from controller.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize("package", ["rich", "aiohttp", "numpy"])
def test_gridchase_says_what_is_missing_and_how_to_get_it(package: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package=package), "check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 2
    assert f"{package} is not installed" in result.stderr
    assert "pip install 'gridchase[controller]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_training_side_imports_the_base_install_alone() -> None:
    heavy = ("asyncio", "html", "numpy", "aiohttp", "aiomqtt", "amqtt", "pynvml", "rich", "controller", "policies")
    script = f"import sys, publishers; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"
