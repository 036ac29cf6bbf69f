"""The `[bus]` table of the controller's and the policy service's configuration."""

from collections.abc import Iterator
from typing import Final

from publishers.messages.codec import TopicRoot
from publishers.mqtt.broker_address import BrokerAddress, BrokerAddressError, SettingNames, without_password
from publishers.shared.files.lookup import file_fault
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.toml_config import Section

BUS_SETTINGS: Final = SettingNames.of_table("bus")


class BusConfig(Section, frozen=True, kw_only=True):
    """Where the broker is. `mqtts://` means TLS; the password is in a file of its own."""

    url: str = "mqtt://127.0.0.1:1883"
    root: TopicRoot = "gridchase/v1"
    username: str = ""
    password_file: str = ""
    ca_file: str = ""


def bus_faults(bus: BusConfig, *, is_optional: bool = False) -> Iterator[str]:
    """Yield the faults between keys, of the URL, and of missing files; where it is optional, the URL may be empty."""
    try:
        if bus.url or not is_optional:
            BrokerAddress(url=bus.url)
    except BrokerAddressError as error:
        yield f"bus.url: {error.sentence(BUS_SETTINGS)}"
    if bus.password_file and not bus.username:
        yield 'bus.username = "": must be set, because bus.password_file is'
    if bus.ca_file and not bus.url.startswith("mqtts://"):
        yield f"bus.url = {without_password(bus.url)!r}: must start with mqtts:// where bus.ca_file is set"
    for key, file in (("bus.password_file", bus.password_file), ("bus.ca_file", bus.ca_file)):
        if file and (fault := file_fault(file)):
            yield f"{key} = {file!r}: {fault}"


def read_bus_password(bus: BusConfig) -> str:
    """Return the password in the file that the configuration names; "" without one.

    Raises:
        ValueError: the file cannot be read; the message never shows what it holds.
    """
    return read_secret_file("bus.password_file", bus.password_file) if bus.password_file else ""
