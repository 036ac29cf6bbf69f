"""Who may sign in: this machine, TLS, and a proxy that is trusted and says that it was reached over TLS."""

import pytest
from aiohttp.test_utils import make_mocked_request

from controller.web.hands.exposure import NOT_ENCRYPTED, NOT_SAID, UNKNOWN_PROXY, Approach, Exposure

HTTPS = {"X-Forwarded-Proto": "https"}
PROXY = "10.0.0.7"


def approach(peer: str, headers: dict[str, str] | None = None, *trusted: str) -> Approach:
    request = make_mocked_request("GET", "/", headers=headers or {}).clone(remote=peer)
    return Exposure(trusted).approach_of(request)


@pytest.mark.parametrize(
    ("peer", "headers", "trusted", "is_encrypted", "fault"),
    [
        ("127.0.0.1", {}, (), False, ""),
        ("::1", {}, (), False, ""),
        ("10.0.0.8", {}, (), False, NOT_ENCRYPTED),
        ("2001:db8::1", {}, (), False, NOT_ENCRYPTED),
        ("", {}, (), False, NOT_ENCRYPTED),
        (PROXY, HTTPS, (PROXY,), True, ""),
        (PROXY, HTTPS, ("10.0.0.0/24",), True, ""),
        ("127.0.0.1", HTTPS, ("127.0.0.1",), True, ""),
        (PROXY, {"X-Forwarded-Proto": "http"}, (PROXY,), False, NOT_SAID),
        (PROXY, {"X-Forwarded-Proto": "https, http"}, (PROXY,), False, NOT_SAID),
        (PROXY, {"X-Forwarded-For": "192.0.2.1"}, (PROXY,), False, NOT_SAID),
        (PROXY, {}, (PROXY,), False, NOT_ENCRYPTED),
        ("10.0.0.8", HTTPS, (PROXY,), False, UNKNOWN_PROXY),
        ("127.0.0.1", HTTPS, (), False, UNKNOWN_PROXY),
        ("127.0.0.1", {"Host": "localhost:9323"}, (), False, ""),
        ("::1", {"Host": "[::1]:9323"}, (), False, ""),
        ("127.0.0.1", {"Host": "power.example"}, (), False, UNKNOWN_PROXY),
        ("127.0.0.1", {"Host": "10.0.0.8:9323"}, (), False, UNKNOWN_PROXY),
        ("127.0.0.1", {"Host": "power.example"}, ("127.0.0.1",), False, NOT_SAID),
        ("127.0.0.1", {"X-Real-IP": "192.0.2.1"}, (), False, UNKNOWN_PROXY),
        ("127.0.0.1", {"Via": "1.1 proxy"}, (), False, UNKNOWN_PROXY),
        ("127.0.0.1", {"Forwarded": "proto=https"}, (PROXY,), False, UNKNOWN_PROXY),
    ],
)
def test_how_a_request_has_come(
    peer: str, headers: dict[str, str], trusted: tuple[str, ...], fault: str, *, is_encrypted: bool
) -> None:
    found = approach(peer, headers, *trusted)
    assert (found.is_encrypted, found.fault) == (is_encrypted, fault)


@pytest.mark.parametrize(
    ("hops", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("198.51.100.9, 192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, 10.0.0.9", "192.0.2.1"),
        ("2001:db8::1234:5", "2001:db8::/64"),
        ("", PROXY),
        ("192.0.2.1, ,", "192.0.2.1"),
        ("192.0.2.1:51234, 10.0.0.9:443", "192.0.2.1"),
        ("[2001:db8::1234:5]:51234", "2001:db8::/64"),
        ("<script>" * 20, ("<script>" * 20)[:64]),
        ("a\u202eb", r"a\u202eb"),
    ],
)
def test_attempts_are_counted_by_the_address_that_a_trusted_proxy_has_seen(hops: str, address: str) -> None:
    assert approach(PROXY, HTTPS | {"X-Forwarded-For": hops}, "10.0.0.0/24").address == address


def test_the_word_of_others_about_addresses_does_not_count() -> None:
    assert approach("10.0.0.8", {"X-Forwarded-For": "192.0.2.1"}, PROXY).address == "10.0.0.8"


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.1.2.3", "::1"])
def test_whoever_is_on_this_machine_has_one_address(peer: str) -> None:
    assert approach(peer).address == "this machine"
