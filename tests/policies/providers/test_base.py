"""What providers share: checks of URLs and variable names, and error messages of one line."""

from pathlib import Path

import pytest
from msgspec import ValidationError, convert

from policies.providers.base import SignalDataError, SignalFileError, SignalLimitedError
from policies.providers.catalogue import CATALOGUE
from policies.providers.sources.awattar import AwattarSettings
from policies.providers.sources.carbon_aware_sdk import CarbonAwareSdkSettings
from policies.providers.sources.csv_file import CsvSettings
from policies.providers.sources.eia import EiaSettings
from policies.providers.sources.mqtt import MqttSettings
from policies.providers.sources.neso import NesoSettings

MQTT = {"topic": "a", "zone": "DE", "kind": "average", "unit": "g/kWh", "username": "ada"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost:99999", "must be an address"),
        ("http://[::1", "must be an address"),
        ("http://\u2603..de", "must be an address"),
        ("http://:80", "must be an address"),
        ("https:///v3", "must name a server"),
        ("https://a.org?token=s3cr3t", "must have no query and no fragment"),
        ("https://a.org/v3#s3cr3t", "must have no query and no fragment"),
        ("https://a.org/v3?", "must have no query and no fragment"),
    ],
)
def test_an_invalid_url_is_a_fault_that_does_not_repeat_it(url: str, words: str) -> None:
    (fault,) = convert({"zone": "GB", "url": url}, NesoSettings).all_faults()
    assert fault.startswith(f"url: {words}")
    assert "s3cr3t" not in fault


@pytest.mark.parametrize("url", ["https://a.org", "http://localhost:5073/", "http://[::1]:80/api/v2"])
def test_a_valid_url_has_no_faults(url: str) -> None:
    assert convert({"zone": "GB", "url": url}, NesoSettings).all_faults() == []


def test_all_faults_include_those_of_the_settings() -> None:
    settings = convert({"zone": "FR", "url": "https://a.org?b"}, NesoSettings)
    assert [fault.partition(" ")[0] for fault in settings.all_faults()] == ["url:", "zone"]
    assert CarbonAwareSdkSettings(zone="a", kind="average").all_faults() == [
        'url = "": must be the address of your WebAPI, as in http://localhost:5073'
    ]


def test_settings_without_an_http_url_have_no_url_faults() -> None:
    assert AwattarSettings(zone="AT").all_faults() == []
    assert CsvSettings(path="a.csv", zone="AT").all_faults() == []
    assert convert(MQTT, MqttSettings).all_faults() == []


@pytest.mark.parametrize("name", ["", "s3cr3t-t0ken", "lower", "1ST", "A B", "A\n"])
def test_an_invalid_variable_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="token_env"):
        convert({"zone": "MISO", "token_env": name}, EiaSettings)
    if name:
        with pytest.raises(ValidationError, match="password_env"):
            convert(MQTT | {"password_env": name}, MqttSettings)


def test_every_provider_with_a_secret_names_a_variable() -> None:
    entries = [entry for chain in CATALOGUE.values() for entry in chain.values()]
    keys = {(entry.settings, key) for entry in entries for key in entry.settings.__struct_fields__ if "_env" in key}
    assert len(keys) == 6
    for settings, key in keys:
        with pytest.raises(ValidationError, match="regex"):
            convert({key: "s3cr3t"}, settings)


def test_error_messages_are_one_line_of_bounded_length() -> None:
    assert str(SignalDataError("a page:\r\n\tof \n words ")) == "a page: of words"
    error = SignalLimitedError("x" * 301, retry_after_s=7.0, status=429)
    assert str(error) == "x" * 299 + "…"
    assert (error.retry_after_s, error.status) == (7.0, 429)
    assert str(SignalDataError("x" * 300)) == "x" * 300


def test_faults_of_a_file_stay_a_list() -> None:
    error = SignalFileError(Path("a.csv"), ["a.csv:1: " + "x" * 400, "a.csv:2: b"])
    assert str(error) == "a.csv:1: " + "x" * 400 + "\na.csv:2: b"
    assert (error.retry_after_s, error.status) == (None, None)
