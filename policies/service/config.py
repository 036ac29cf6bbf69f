"""The configuration of the policy service: frozen records, defaults that work; `deploy/policy.toml` shows every key."""

from typing import Annotated, Literal

from msgspec import Meta

from policies.service.records import Beta, Eta
from publishers.mqtt.bus_config import BusConfig
from publishers.shared.toml_config import Section


class StoreConfig(Section, frozen=True, kw_only=True):
    """The database: `sqlite:///path` or `postgresql://user@host/name`; an empty url: SQLite in the state directory.

    Results wait in `spool_dir` while the database is away; empty: below the state directory.
    """

    url: str = ""
    password_file: str = ""
    spool_dir: str = ""
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0


class LearningConfig(Section, frozen=True, kw_only=True):
    """How batch sizes are learned by default; forgetting_ratio 0: the one that has predicted best."""

    policy: Literal["gridchase", "zeus"] = "gridchase"
    eta: Eta = 0.5
    beta: Beta = 2.0
    horizon: Annotated[float, Meta(ge=1, le=100_000)] = 50.0
    forgetting_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    lease_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0


class HttpConfig(Section, frozen=True, kw_only=True):
    """Where the HTTP API is served; port 0 takes a free one, -1 none.

    Writes need a token: the service's own, in its state directory, or one of `token_file`, one a line.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=-1, le=65_535)] = 9322
    token_file: str = ""


class PolicyConfig(Section, frozen=True, kw_only=True):
    """The whole configuration. An empty `bus.url`: no bus."""

    bus: BusConfig = BusConfig()
    store: StoreConfig = StoreConfig()
    learning: LearningConfig = LearningConfig()
    http: HttpConfig = HttpConfig()
