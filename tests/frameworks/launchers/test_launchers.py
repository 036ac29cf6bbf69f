"""Whatever starts the ranks of a training, they are one run: one id, the ranks from 0 on, each with its own iterations.

Launched twice, it is two runs. Nothing is configured but the job and the broker.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("torch", reason="`make test-frameworks` sets up an environment that has PyTorch")

from tests.frameworks.bus import Bus, Record
from tests.frameworks.launchers.training import N_STEPS
from tests.frameworks.process import environment, train_published
from tests.live.conftest import Mosquitto, free_port

SCRIPT: Final = str(Path(__file__).with_name("training.py"))
PYTHON: Final = [sys.executable, SCRIPT]
PLAIN: Final = [sys.executable, str(Path(__file__).with_name("plain.py")), str(N_STEPS)]
TORCHRUN: Final = [sys.executable, "-m", "torch.distributed.run"]
ACCELERATE: Final = [sys.executable, "-m", "accelerate.commands.launch"]


def torchrun(*options: str) -> list[str]:
    return [*TORCHRUN, "--nproc-per-node=2", *options, SCRIPT, "environment"]


def ranks_of_one_run(records: Sequence[Record], n_ranks: int = 2) -> list[int]:
    """Check that records are those of one run; return how many iterations each rank has."""
    assert len({record.run for record in records}) == 1
    assert [record.rank for record in records] == list(range(n_ranks))
    for record in records:
        assert record.states == ["running", "finished"]
        assert {status.world_size for status in record.statuses} == {n_ranks}
    return [record.n_iterations for record in records]


def train_once(command: Sequence[str], broker: Mosquitto, tmp_path: Path) -> None:
    outcome = train_published(command, tmp_path, broker.url)
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("torchrun", marks=pytest.mark.further),  # an example is launched so
        pytest.param("torchrun, with a port", marks=pytest.mark.further),
        "torchrun, with an id of the user's",
        "mp.spawn",
        pytest.param("mp.spawn, by a file", marks=pytest.mark.further),
        "fork, with the parent's loader",
        "accelerate launch",
        "debug_launcher",
    ],
)
def test_the_ranks_of_a_launch_are_one_run(way: str, broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    port = free_port()
    launch = {
        "torchrun": torchrun(),
        "torchrun, with a port": torchrun(f"--master-port={port}"),
        "torchrun, with an id of the user's": torchrun(
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=100"
        ),
        "mp.spawn": [*PYTHON, "spawn", f"tcp://127.0.0.1:{port}"],
        "mp.spawn, by a file": [*PYTHON, "spawn", f"file://{tmp_path}/rendezvous"],
        "fork, with the parent's loader": [*PYTHON, "fork", f"tcp://127.0.0.1:{port}"],
        "accelerate launch": [
            *ACCELERATE, "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
            "--dynamo_backend=no", f"--main_process_port={port}", SCRIPT, "accelerate",
        ],
        "debug_launcher": [*PYTHON, "debug_launcher"],
    }[way]  # fmt: skip
    train_once(launch, broker, tmp_path)
    assert ranks_of_one_run(bus.records(2)) == [N_STEPS, N_STEPS]


@pytest.mark.further
def test_each_launch_is_a_run_of_its_own(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    for _ in range(2):
        train_once(torchrun(f"--master-port={free_port()}"), broker, tmp_path)
    records = bus.records(4)
    assert len({record.run for record in records}) == 2
    for k in (0, 2):
        assert ranks_of_one_run(records[k : k + 2]) == [N_STEPS, N_STEPS]


def test_the_nodes_of_a_static_launch_are_one_run(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    """Two agents of torchrun on this machine, which know nothing of each other but an address."""
    options = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    commands = [[*TORCHRUN, f"--node-rank={node}", *options, SCRIPT, "environment"] for node in (0, 1)]
    variables = environment(GRIDCHASE_JOB="toy", GRIDCHASE_BROKER=broker.url, GRIDCHASE_QUIET="1")
    children = [subprocess.Popen(command, env=variables, cwd=tmp_path) for command in commands]
    assert [child.wait(120.0) for child in children] == [0, 0]
    assert ranks_of_one_run(bus.records(2)) == [N_STEPS, N_STEPS]


@pytest.mark.parametrize(
    "options",
    [pytest.param([], marks=pytest.mark.further), ["--master-port={port}"]],
    ids=["torchrun's id", "agent's store"],
)
def test_two_trainings_of_one_launch_are_two_runs(
    options: list[str], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    ported = [option.format(port=free_port()) for option in options]
    train_once([*TORCHRUN, "--nproc-per-node=2", *ported, SCRIPT, "twice"], broker, tmp_path)
    records = bus.records(4)
    for k in (0, 2):
        assert ranks_of_one_run(records[k : k + 2]) == [N_STEPS, N_STEPS]


@pytest.mark.parametrize(
    "options",
    [pytest.param([], marks=pytest.mark.further), ["--master-port={port}"]],
    ids=["torchrun's id", "agent's store"],
)
def test_ranks_that_torchrun_starts_again_go_on_with_their_run(
    options: list[str], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    ported = [option.format(port=free_port()) for option in options]
    command = [*TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", *ported, SCRIPT, "fail once"]
    train_once(command, broker, tmp_path)
    records = bus.records(2)
    assert len({record.run for record in records}) == 1
    assert [record.rank for record in records] == [0, 1]
    for record in records:
        assert [state for state in record.states if state != "lost"] in (
            ["running", "finished"],
            ["running"] * 2 + ["finished"],
        )
        assert len({status.pid for status in record.statuses}) == 2
        assert sum(len(message.ends_ns()) for message in record.messages) == N_STEPS + N_STEPS // 2


@pytest.mark.parametrize(
    "strategy",
    [pytest.param("ddp", marks=pytest.mark.further), "ddp_spawn", pytest.param("ddp_fork", marks=pytest.mark.further)],
)
def test_what_lightning_launches_is_one_run(strategy: str, broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    train_once([*PYTHON, "lightning", strategy], broker, tmp_path)
    assert ranks_of_one_run(bus.records(2)) == [N_STEPS, N_STEPS]


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpiexec.mpich"])
@pytest.mark.parametrize(
    "has_group", [True, pytest.param(False, marks=pytest.mark.further)], ids=["process group", "no process group"]
)
def test_what_an_mpi_launches_is_one_run(
    launcher: str, has_group: bool, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    found = shutil.which(launcher)
    if found is None:
        pytest.skip(f"{launcher} is not installed: apt-get install openmpi-bin mpich")
    way = ["mpi", f"tcp://127.0.0.1:{free_port()}"] if has_group else ["alone"]
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    outcome = train_published([found, "-n", "2", *PYTHON, *way], tmp_path, broker.url, **root)
    assert outcome.exit_code == 0, outcome.stderr
    assert ranks_of_one_run(bus.records(2)) == [N_STEPS, N_STEPS]


@pytest.mark.parametrize(
    "variables",
    [
        [
            {
                "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
                "SLURM_PROCID": rank, "SLURM_NTASKS": "2", "SLURM_LOCALID": rank,
            }
            for rank in "01"
        ],
        pytest.param(
            [
                {
                    "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-77@1",
                }
                for rank in "01"
            ],
            marks=pytest.mark.further,
        ),
        pytest.param(
            [{"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"} for rank in "01"],
            marks=pytest.mark.further,
        ),
    ],
    ids=["srun", "Open MPI", "MPICH"],
)  # fmt: skip
def test_processes_with_the_variables_of_a_launcher_that_is_not_here_are_one_run(
    variables: list[dict[str, str]], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """The launcher is faked: two processes of one parent, with the variables that it sets."""
    ours = {"GRIDCHASE_JOB": "toy", "GRIDCHASE_BROKER": broker.url, "GRIDCHASE_QUIET": "1"}
    children = [subprocess.Popen(PLAIN, env=environment(**ours, **rank), cwd=tmp_path) for rank in variables]
    assert [child.wait(120.0) for child in children] == [0, 0]
    assert ranks_of_one_run(bus.records(2)) == [N_STEPS, N_STEPS]


def test_what_a_batch_script_starts_one_after_the_other_are_runs_of_their_own(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """The variables of Slurm's batch script are faked: it says that there are four tasks, and has started none."""
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "RANK": ""}
    for _ in range(2):
        outcome = train_published(PLAIN, tmp_path, broker.url, **batch)
        assert outcome.exit_code == 0, outcome.stderr
    first, second = bus.records(2)
    assert first.run != second.run
    assert [ranks_of_one_run([record], n_ranks=1) for record in (first, second)] == [[N_STEPS], [N_STEPS]]
