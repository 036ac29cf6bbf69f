"""NVML in separate processes: what is missing at the start, hangs at the end, and one machine shared by several."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.live.nvml_stub.machine import LIBRARY_NAME, STATE_VARIABLE, StubMachine

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 30.0

OPEN = """
    import asyncio
    from controller.gpu.nvml.backend import NvmlBackend
    from controller.errors import BackendError

    async def main():
        backend = NvmlBackend()
        try:
            gpus = await backend.open()
        except BackendError as error:
            print("refused:", error)
        else:
            print("opened:", backend.driver, *(gpu.model for gpu in gpus))
            await backend.close()

    asyncio.run(main())
"""


def run_python(program: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(changes: dict[str, str]) -> dict[str, str]:
    path = ":".join(filter(None, [changes.get("PYTHONPATH"), str(ROOT)]))
    return {**os.environ, **changes, "PYTHONPATH": path}


def test_a_separate_process_opens_the_machine(nvml_machine: StubMachine) -> None:
    said = run_python(OPEN, nvml_machine.environment())
    assert said == "opened: NVIDIA 535.104.05 (NVML 12.535.104.05) NVIDIA A40\n"


def test_without_the_library_the_error_says_to_install_the_driver(tmp_path: Path) -> None:
    (tmp_path / LIBRARY_NAME).touch()  # no library, and it hides a real one that this node may have
    said = run_python(OPEN, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert said.startswith("refused: cannot open NVML")
    assert "install the NVIDIA driver" in said


def test_without_a_loaded_driver_the_error_says_to_load_it(nvml_library: Path, tmp_path: Path) -> None:
    environment = {"LD_LIBRARY_PATH": str(nvml_library.parent), STATE_VARIABLE: str(tmp_path / "nothing")}
    assert "modprobe nvidia" in run_python(OPEN, environment)


def test_without_the_bindings_the_error_says_what_to_install() -> None:
    said = run_python("    import sys; sys.modules['pynvml'] = None\n" + OPEN, {})
    assert "pip install nvidia-ml-py" in said


def test_the_unofficial_package_is_rejected_even_beside_the_official_one(
    nvml_machine: StubMachine, tmp_path: Path
) -> None:
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").touch()
    _write_metadata(tmp_path, "11.5.3", "pynvml/__init__.py")
    said = run_python(OPEN, {**nvml_machine.environment(), "PYTHONPATH": str(tmp_path)})
    assert said.startswith("refused: `import pynvml` gives")
    assert "the unofficial package pynvml 11.5.3" in said
    assert "pip uninstall pynvml" in said
    assert nvml_machine.calls("nvmlInitWithFlags") == 0


def test_a_module_of_unknown_origin_is_rejected(nvml_machine: StubMachine, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").touch()
    said = run_python(OPEN, {**nvml_machine.environment(), "PYTHONPATH": str(tmp_path)})
    assert "from a package of unknown origin" in said


def test_a_newer_unofficial_package_on_top_of_the_official_one_is_accepted(
    nvml_machine: StubMachine, tmp_path: Path
) -> None:
    (tmp_path / "pynvml_utils").mkdir()
    (tmp_path / "pynvml_utils" / "__init__.py").touch()
    _write_metadata(tmp_path, "12.0.0", "pynvml_utils/__init__.py")
    assert run_python(OPEN, {**nvml_machine.environment(), "PYTHONPATH": str(tmp_path)}).startswith("opened: ")


def _write_metadata(folder: Path, version: str, file: str) -> None:
    metadata = folder / f"pynvml-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pynvml\nVersion: {version}\n")
    (metadata / "RECORD").write_text(f"{file},,\n")


def test_a_hanging_driver_does_not_keep_the_process_alive(nvml_machine: StubMachine) -> None:
    nvml_machine.gpu().hang("nvmlDeviceGetFieldValues", 600_000)
    said = run_python(
        """
        import asyncio
        from controller.gpu.nvml.backend import NvmlBackend
        from controller.errors import GpuSuspectError

        async def main():
            backend = NvmlBackend(read_timeout_s=1.0)
            (gpu,) = await backend.open()
            try:
                await gpu.read_sample()
            except GpuSuspectError as error:
                print("suspect")
            await backend.close()

        asyncio.run(main())
        """,
        nvml_machine.environment(),
    )
    assert said == "suspect\n"
    assert nvml_machine.calls("nvmlShutdown") == 0  # a call is out: the library stays as it is


def test_a_limit_that_one_process_writes_slows_the_job_of_another(nvml_machine: StubMachine) -> None:
    gpu = nvml_machine.gpu()
    assert gpu.iteration_time_s() == pytest.approx(3847.48 / 5004.56 / 100)
    run_python(
        """
        import asyncio
        from controller.gpu.nvml.backend import NvmlBackend

        async def main():
            backend = NvmlBackend()
            (gpu,) = await backend.open()
            await gpu.set_power_limit(162.5)
            await backend.close()

        asyncio.run(main())
        """,
        nvml_machine.environment(),
    )
    assert gpu.requested_power_limit_w == 162.5
    assert gpu.iteration_time_s() == pytest.approx((6326.84 + 4705.61) / 2 / 5004.56 / 100)
    assert gpu.set_calls == 1


def test_a_training_process_finds_the_machine_by_its_environment(nvml_machine: StubMachine) -> None:
    program = """
        from tests.live.nvml_stub.machine import StubMachine
        StubMachine.from_environment().gpu().busy = True
    """
    run_python(program, nvml_machine.environment())
    assert nvml_machine.gpu().busy
    assert nvml_machine.gpu().power_w == pytest.approx(235.21)


def test_the_stub_survives_a_process_that_is_killed_while_it_holds_the_lock(nvml_machine: StubMachine) -> None:
    program = """
        import ctypes, time
        from tests.live.nvml_stub.machine import StubMachine
        machine = StubMachine.from_environment()
        assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(machine.raw.lock)) == 0
        print("locked", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=_environment(nvml_machine.environment()),
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        child.kill()
    nvml_machine.gpu().busy = True  # would wait for ever for a lock that died with its owner
    assert nvml_machine.gpu().busy


def test_the_stubs_energy_counter_loses_nothing_by_frequent_updates(nvml_machine: StubMachine) -> None:
    gpu = nvml_machine.gpu()
    gpu.busy = True
    begin_ns, begin_mj = gpu.raw.settled_ns, gpu.raw.energy_mj
    for _ in range(1_000):
        gpu.set_requested_power_limit_w(300.0)
    spent_s = (gpu.raw.settled_ns - begin_ns) / 1e9
    assert (gpu.raw.energy_mj - begin_mj) / 1e3 == pytest.approx(235.21 * spent_s)
