"""The configuration of `gridchase web`: frozen records, defaults that work; `deploy/web.toml` shows every key."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from controller.config import Retention, default_state_dir
from controller.errors import ConfigError
from publishers.mqtt.bus_config import BusConfig, bus_faults
from publishers.shared.files.lookup import file_fault
from publishers.shared.toml_config import Section, load_sections, redacted_repr


class WebSettings(Section, frozen=True, kw_only=True):
    """Where HTTP is served; port 0 takes a free one, -1 none. Where the history is; "": SQLite in `state_dir`.

    `orders` lets whoever has a token of `token_file` order what runs do; `sign_in_to_read` shows the pages to nobody
    else. `tls_cert_file` and `tls_key_file` encrypt; `trusted_proxies` are addresses and networks of proxies that tell
    how they were reached, and `server_names` the names by which they ask a loopback address.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=-1, le=65_535)] = 9323
    database: str = ""
    password_file: str = ""
    state_dir: str = ""
    orders: bool = False
    token_file: str = ""
    sign_in_to_read: bool = False
    tls_cert_file: str = ""
    tls_key_file: str = ""
    trusted_proxies: Annotated[list[str], Meta(max_length=16)] = msgspec.field(default_factory=list)
    server_names: Annotated[list[str], Meta(max_length=16)] = msgspec.field(default_factory=list)


class WebConfig(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    bus: BusConfig = BusConfig()
    web: WebSettings = WebSettings()
    retention: Retention = Retention()


def load_web_config(path: Path | None, overrides: Sequence[str] = ()) -> WebConfig:
    """Return the configuration in the TOML file at `path` (or the defaults), with `section.key=value` overrides.

    Raises:
        ConfigError: with every fault there is.
    """
    config, faults = load_sections(WebConfig, path, overrides, cross_key_faults=_faults)
    if faults:
        raise ConfigError(faults)
    state_dir = config.web.state_dir or str(default_state_dir() / "web")
    return msgspec.structs.replace(config, web=msgspec.structs.replace(config.web, state_dir=state_dir))


def _faults(config: WebConfig) -> Iterator[str]:
    yield from bus_faults(config.bus)
    web = config.web
    is_server = web.database.startswith("postgresql://")
    if web.database and not is_server:
        yield (
            f"web.database = {redacted_repr(web.database)}: must be empty, which means SQLite in web.state_dir, or "
            "postgresql://USER@HOST/NAME"
        )
    if is_server and ":" in web.database.removeprefix("postgresql://").split("/")[0].rpartition("@")[0]:
        yield f"web.database = {redacted_repr(web.database)}: must hold no password: it belongs into web.password_file"
    if web.password_file and not is_server:
        yield f"web.password_file = {web.password_file!r}: is only for postgresql://"
    elif web.password_file and (fault := file_fault(web.password_file)):
        yield f"web.password_file = {web.password_file!r}: {fault}"
    yield from _access_faults(config)


def _access_faults(config: WebConfig) -> Iterator[str]:
    web = config.web
    if web.orders and not config.bus.username:
        yield "web.orders = true: needs bus.username: the broker's rules say which user may send orders"
    for key in ("orders", "sign_in_to_read"):
        if getattr(web, key) and not web.token_file:
            yield f"web.{key} = true: needs web.token_file, the tokens that people sign in with"
    if bool(web.tls_cert_file) != bool(web.tls_key_file):
        yield "web.tls_cert_file, web.tls_key_file: need each other"
    for key in ("token_file", "tls_cert_file", "tls_key_file"):
        path = getattr(web, key)
        if path and (fault := file_fault(path)):
            yield f"web.{key} = {path!r}: {fault}"
    yield from filter(None, map(_proxy_fault, web.trusted_proxies))


def _proxy_fault(proxy: str) -> str:
    try:
        network = ip_network(proxy)
    except ValueError as error:
        return f"web.trusted_proxies: {proxy!r}: must be an address, or a network as 10.0.0.0/24: {error}"
    return "" if network.prefixlen else f"web.trusted_proxies: {proxy!r}: trusts whoever asks: name the proxies"
