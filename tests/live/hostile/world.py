"""What a tenant of a machine can know: his own password, and what every local user may look up."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.live.hostile.raw_client import Door, RawClient

MARK = b"by mallory"
"""In every payload that would be a forgery, so that whoever receives one can tell."""
TENANT = "mallory"
VICTIM = "alice"
JOB, RUN, NODE = "resnet50", "honest", "gpu01"
ROOT = "gridchase/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Ports by door, the machine, its GPUs, the honest job on the first of them, and the controller."""

    ports: dict[str, int]
    ca_pem: str
    password: str
    boot_id: str
    gpu_uuids: list[str]
    victim_pid: int
    controller_pid: int
    http_port: int
    state_dir: str
    broker_dir: str
    shared_dir: str
    link_target: str
    duration_s: float

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the world from a file."""
        return cls(**json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        """Write the world to a file."""
        file.write_text(json.dumps(asdict(self)))

    def door(self, name: str = "trainings") -> Door:
        """Return a door of the broker."""
        return Door(port=self.ports[name], ca_pem=self.ca_pem)

    def tenant(self, **options: object) -> RawClient:
        """Return a connection of the tenant, who has a valid password."""
        client = RawClient(self.door())
        assert client.log_in(TENANT, self.password, **options) == 0  # type: ignore[arg-type]
        return client

    def rank(
        self, leaf: str, *, user: str = TENANT, job: str = JOB, run: str = RUN, rank: int = 0, host: str = ""
    ) -> str:
        """Return a rank's topic."""
        return f"{ROOT}/host/{host or self.boot_id}/user/{user}/job/{job}/run/{run}/rank/{rank}/{leaf}"
