"""Which run and which rank a process is: what the environment says, and what the ranks agree on in a store."""

import sys
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from publishers.training.run import run_search
from publishers.training.run.launchers import launch_id, parent_start
from publishers.training.run.run_search import GROUP_PATIENCE_S, RunSearch
from publishers.training.settings import Settings, SettingsError, resolve
from tests.publishers.training.fake_store import FakeStore

UUID = "0b2de6b4-11a4-4d8c-9f9c-1f63ad3ae7a2"
STEP = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
PARENT = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}


class Distributed(ModuleType):
    """The part of torch.distributed that is used: a process group that may begin later."""

    def __init__(self, store: FakeStore, *, rank: int = 0, world_size: int = 2, begun: bool = True) -> None:
        super().__init__("torch.distributed")
        self.store, self.rank, self.world_size, self.begun = store, rank, world_size, begun
        self.agents: list[tuple[str, int]] = []

    def is_initialized(self) -> bool:
        return self.begun

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world_size

    def _get_default_store(self) -> FakeStore:
        return self.store

    def TCPStore(self, host: str, port: int, **_: object) -> FakeStore:  # noqa: N802 — torch's name
        self.agents.append((host, port))
        return self.store


@pytest.fixture(autouse=True)
def _no_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_search, "_n_runs", {})


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Distributed]:
    """Have torch imported, with a process group of two."""
    distributed = Distributed(FakeStore())
    for name in ("torch", "torch.distributed", "torch.distributed.distributed_c10d"):
        monkeypatch.setitem(sys.modules, name, distributed)
    return distributed


def search(environ: Mapping[str, str], clock_s: Any = lambda: 0.0, **arguments: Any) -> RunSearch:  # noqa: ANN401 — anything may be passed
    return RunSearch(resolve(environ, **{"job": "toy", **arguments}), environ, clock_s)


def found(environ: Mapping[str, str], **arguments: Any) -> Settings:  # noqa: ANN401 — as above
    settings = search(environ, **arguments).find(is_due=True)
    assert settings is not None
    return settings


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"GRIDCHASE_RUN": "own", "TORCHELASTIC_RUN_ID": UUID}, "own"),
        ({"TORCHELASTIC_RUN_ID": UUID, **STEP}, UUID),
        ({"TORCHELASTIC_RUN_ID": "100", "WORLD_SIZE": "4", **STEP}, "5.0"),
        ({"TORCHELASTIC_RUN_ID": "100", "WORLD_SIZE": "2"}, "100"),
        (STEP, "5.0"),
    ],
)
def test_the_environment_names_the_run(environ: dict[str, str], run: str) -> None:
    assert found(environ).run == run


def test_a_run_of_one_process_is_random_whatever_it_has_inherited() -> None:
    for environ in ({}, {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {**STEP, "SLURM_NTASKS": "1"}):
        one, other = (found({**environ, "SLURM_PROCID": "0"}) for _ in range(2))
        assert (one.rank, one.world_size) == (0, 1)
        assert one.run != other.run


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292", "", "x"])
def test_a_shell_in_an_allocation_is_no_rank(step: str) -> None:
    settings = found({**STEP, "SLURM_STEP_ID": step})
    assert (settings.rank, settings.world_size) == (0, 1)


@pytest.mark.parametrize("name", ["bash", "interactive", "resnet50"])
def test_the_name_of_a_slurm_job_decides_nothing(name: str) -> None:
    assert found({**STEP, "SLURM_JOB_NAME": name}).run == "5.0"


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        (STEP, (2, 4)),
        (STEP | {"WORLD_SIZE": "8"}, (2, 8)),
        (STEP | {"RANK": "6", "WORLD_SIZE": "8"}, (6, 8)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-a-7@1"},
            (1, 2),
        ),
        (PARENT, (1, 2)),
    ],
)
def test_each_launcher_gives_rank_and_size(environ: dict[str, str], ranks: tuple[int, int]) -> None:
    settings = found(environ)
    assert (settings.rank, settings.world_size) == ranks


def test_ranks_with_one_parent_have_one_id_and_those_of_several_nodes_none() -> None:
    assert parent_start()
    assert launch_id(PARENT) == launch_id(PARENT | {"PMI_RANK": "0"})
    assert launch_id(PARENT | {"PMI_SIZE": "4"}) is None
    with pytest.raises(SettingsError, match="set GRIDCHASE_RUN"):
        found(PARENT | {"PMI_SIZE": "4"})
    mpi = {"PMIX_NAMESPACE": "prterun-a-7@1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert launch_id(mpi) not in {None, launch_id(mpi | {"PMIX_NAMESPACE": "prterun-a-8@1"})}


def test_several_ranks_without_anything_in_common_are_told_what_to_set() -> None:
    for environ in ({"RANK": "0", "WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}):
        with pytest.raises(SettingsError, match="world_size = 4 ranks must share one: set GRIDCHASE_RUN"):
            found(environ)


def test_the_next_run_of_a_job_in_one_process_has_an_id_of_its_own() -> None:
    environ = {"GRIDCHASE_RUN": "r"}
    assert [found(environ).run for _ in range(3)] == ["r", "r-2", "r-3"]
    assert found(environ, job="other").run == "r"
    assert [found(environ, run="mine").run for _ in range(2)] == ["mine", "mine"]
    assert found({"GRIDCHASE_RUN": "r" * 64}).run == "r" * 62 + "-4"


def test_ranks_agree_in_the_store_of_their_group_whatever_the_environment_says(torch: Distributed) -> None:
    zero = found({})
    torch.rank = 1
    one = found({"RANK": "0"})  # as some launchers set it, on each rank
    assert zero.run == one.run
    assert [(each.rank, each.world_size) for each in (zero, one)] == [(0, 2), (1, 2)]
    second = found({})
    assert second.run != one.run
    torch.rank = 0
    assert found({}).run == second.run


def test_the_process_group_is_waited_for_until_the_training_begins(torch: Distributed) -> None:
    torch.begun = False
    asked = search({})
    assert asked.find(is_due=False) is None
    torch.begun = True
    settings = asked.find(is_due=False)
    assert settings is not None
    assert settings.world_size == 2


def test_a_single_process_waits_no_longer_than_until_it_trains(torch: Distributed) -> None:
    torch.begun = False
    settings = search({}).find(is_due=True)
    assert settings is not None
    assert settings.world_size == 1


def test_one_of_several_waits_for_its_group_for_a_while(torch: Distributed) -> None:
    torch.begun, now_s = False, [0.0]
    asked = search({"RANK": "1", "WORLD_SIZE": "2", "GRIDCHASE_RUN": "r"}, clock_s=lambda: now_s[0])
    for now_s[0] in (0.0, GROUP_PATIENCE_S / 2):
        assert asked.find(is_due=True) is None
    now_s[0] = GROUP_PATIENCE_S
    settings = asked.find(is_due=True)
    assert settings is not None
    assert (settings.run, settings.rank) == ("r", 1)


def test_ranks_of_torchrun_whose_id_is_none_agree_in_its_agents_store(torch: Distributed) -> None:
    torch.begun = False
    environ = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "head",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
    }
    runs = []
    for rank in "01":
        run_search._n_runs.clear()  # each rank is a process of its own, and trains twice
        runs.append([found({**environ, "RANK": rank}).run for _ in range(2)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 2
    assert set(torch.agents) == {("head", 29500)}


def test_a_store_that_fails_is_tried_three_times_and_then_the_launcher_is_asked(
    torch: Distributed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> FakeStore:
        raise RuntimeError("the host has gone")

    monkeypatch.setattr(torch, "TCPStore", gone)
    torch.begun = False
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "100", "WORLD_SIZE": "2", "RANK": "0"}
    asked = search(environ | {"MASTER_ADDR": "head", "MASTER_PORT": "29500"})
    assert [asked.find(is_due=True) for _ in range(3)] == [None] * 3
    settings = asked.find(is_due=True)
    assert settings is not None
    assert settings.run == "100"


def test_a_child_of_a_training_is_none_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_search, "is_child", lambda: True)
    environ = {"TORCHELASTIC_RUN_ID": UUID, "RANK": "3", "WORLD_SIZE": "4"}
    one, other = found(environ), found(environ)
    assert (one.rank, one.world_size) == (0, 1)
    assert len({one.run, other.run, UUID}) == 3
    named = found(environ | {"GRIDCHASE_RUN": "r"})
    assert (named.run, named.rank, named.world_size) == ("r", 3, 4)


def test_a_search_has_one_thread(torch: Distributed) -> None:
    """The worker's: it is not the one that made the publisher."""
    settings = []
    thread = threading.Thread(target=lambda: settings.append(found({})))
    thread.start()
    thread.join()
    assert settings[0].world_size == torch.world_size


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, "a1b2"),
        ({"GRIDCHASE_RUN": "mine"}, None),
        ({"TORCHELASTIC_RUN_ID": UUID, "RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"GRIDCHASE_LAUNCH": "no name"}, None),
    ],
    ids=["nobody says which run", "the user does", "torchrun does", "a bad id"],
)
def test_the_launch_is_told_where_nothing_else_says_which_run_it_is(
    environ: dict[str, str], launch: str | None
) -> None:
    assert found({"GRIDCHASE_LAUNCH": "a1b2", **environ}).launch == launch
