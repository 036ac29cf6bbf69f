"""Messages as controllers publish them, and a history in memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, StaticPool, create_engine

from controller.history.energy_history.schema import METADATA
from publishers.messages.codec import encode
from publishers.messages.reports import GpuEnergy, LimitChange, RunEnergy
from publishers.messages.topics import RunKey, Topics
from tests.fakes import MIDNIGHT_S

TOPICS = Topics()
NODE = "node-a"
_RUN = RunEnergy(
    time_s=MIDNIGHT_S,
    run="r1",
    state="running",
    gpu_model="NVIDIA A40",
    n_gpus=1,
    iterations=1,
    epochs=0,
    duration_s=0.0,
    energy_j=0.0,
    carbon_g=0.0,
)


def run_record(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return a record of a run that goes on."""
    return msgspec.structs.replace(_RUN, **changes)


def measured(record: RunEnergy, *, saved_ratio: float, ci90_ratio: float = 0.02) -> RunEnergy:
    """Return a record with evidence of what was saved, of carbon as of energy."""
    return msgspec.structs.replace(
        record,
        evidence="measured",
        baseline_energy_j=record.energy_j / (1 - saved_ratio),
        baseline_carbon_g=None if record.carbon_g is None else record.carbon_g / (1 - saved_ratio),
        baseline_duration_s=record.duration_s / 1.03,
        saved_ratio=saved_ratio,
        saved_ci90_ratio=ci90_ratio,
        saved_energy_ratio=saved_ratio,
        saved_energy_ci90_ratio=ci90_ratio,
        slowdown_ratio=1.03,
        slowdown_ci90_ratio=0.004,
    )


def split(record: RunEnergy, following_ratio: float, *, ci90_ratio: float = 0.005) -> RunEnergy:
    """Return a record that says what its saving is made of; measuring has cost 1 %."""
    parts = {
        "better_limit": (record.saved_ratio or 0.0) - following_ratio + 0.01,
        "following": following_ratio,
        "measuring": -0.01,
    }
    ratios = {f"saved_{name}_ratio": ratio for name, ratio in parts.items()}
    halves = {f"saved_{name}_ci90_ratio": ci90_ratio for name in parts}
    return msgspec.structs.replace(record, **ratios, **halves)


def run_message(
    record: RunEnergy, *, node: str | None = None, job: str = "resnet50", user: str = "alice"
) -> tuple[str, bytes]:
    """Return topic and payload of a run's record, or of a node's part of it."""
    key = RunKey(user, job, record.run)
    topic = TOPICS.run(key, "energy") if node is None else TOPICS.run_on_node(key, node)
    return topic, encode(msgspec.structs.replace(record, user=user, job=job, node=node))


def gpu_message(time_s: float, energy_j: float | None, *, gpu_uuid: str = "GPU-0", **more: Any) -> tuple[str, bytes]:  # noqa: ANN401
    """Return topic and payload of a GPU's energy."""
    return TOPICS.gpu(NODE, gpu_uuid, "energy"), encode(GpuEnergy(time_s=time_s, energy_j=energy_j, **more))


def limit_message(time_s: float, *, detail: str = "why", gpu_uuid: str = "GPU-0") -> tuple[str, bytes]:
    """Return topic and payload of a change of a GPU's limit."""
    change = LimitChange(
        time_s=time_s,
        gpu_index=int(gpu_uuid.rpartition("-")[2]),
        reason="plan",
        detail=detail,
        power_limit_w=200.0,
        previous_power_limit_w=280.0,
    )
    return TOPICS.gpu(NODE, gpu_uuid, "limit"), encode(change)


@contextmanager
def memory() -> Iterator[Connection]:
    """Hold the tables of a history in memory."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    METADATA.create_all(engine)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def machine_zone(name: str) -> Iterator[None]:
    """Let the time zone of this machine be another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()
