"""The configuration of the policy service, read as the controller's is: TOML and overrides, every fault at once."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from controller.config import default_state_dir
from controller.errors import ConfigError
from policies.service.config import PolicyConfig, StoreConfig
from publishers.mqtt.bus_config import bus_faults
from publishers.shared.files.lookup import file_fault
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.toml_config import load_sections, redacted_repr

_SQLITE: Final = "sqlite"
_POSTGRES: Final = ("postgresql", "postgresql+asyncpg")
_STORE_URLS: Final = "must be empty, sqlite:///PATH or postgresql://USER@HOST/NAME"


def load_policy_config(path: Path | None, overrides: Sequence[str] = ()) -> PolicyConfig:
    """Return the configuration in the TOML file at `path` (or the defaults), with `section.key=value` overrides.

    Raises:
        ConfigError: with every fault there is.
    """
    config, faults = load_sections(PolicyConfig, path, overrides, cross_key_faults=check_policy_config)
    if faults:
        raise ConfigError(faults)
    return config


def check_policy_config(config: PolicyConfig) -> list[str]:
    """Return the faults that concern more than one key, and the files that are missing."""
    return [*bus_faults(config.bus, is_optional=True), *_check_store(config.store), *_check_files(config)]


def policy_state_dir(state_dir: Path | None) -> Path:
    """Return where the service keeps its SQLite database and what waits for the database to come back."""
    return state_dir if state_dir is not None else default_state_dir() / "policy"


def read_store_password(store: StoreConfig) -> str:
    """Return the password in the file that the configuration names, or nothing.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not store.password_file:
        return ""
    try:
        return read_secret_file("store.password_file", store.password_file)
    except ValueError as error:
        raise ConfigError([str(error)]) from error


def _check_store(store: StoreConfig) -> Iterator[str]:
    is_sqlite = not store.url or store.url.startswith(_SQLITE)
    if store.password_file and is_sqlite:
        yield f"store.password_file = {store.password_file!r}: SQLite knows no password; set store.url, or leave it out"
    if not store.url:
        return
    try:
        parts = urlsplit(store.url)
        host, password, _ = parts.hostname, parts.password, parts.port
    except ValueError as error:
        yield f"store.url = {redacted_repr(store.url)}: {error}; {_STORE_URLS}"
        return
    if password is not None:
        yield f"store.url = {redacted_repr(store.url)}: must hold no password: it belongs into store.password_file"
    elif is_sqlite:
        if parts.scheme != _SQLITE or host or not parts.path.strip("/"):
            sentence = "must be sqlite:///PATH, with four slashes where PATH is absolute"
            yield f"store.url = {redacted_repr(store.url)}: {sentence}"
    elif parts.scheme not in _POSTGRES or not parts.path.strip("/"):
        yield f"store.url = {redacted_repr(store.url)}: {_STORE_URLS}"


def _check_files(config: PolicyConfig) -> Iterator[str]:
    files = {
        "store.password_file": config.store.password_file,
        "http.token_file": config.http.token_file,
    }
    for key, file in files.items():
        if file and (fault := file_fault(file)):
            yield f"{key} = {file!r}: {fault}"
