"""Who this process is, as it says itself."""

import pytest

from publishers.shared.process_identity import read_login_name


def test_the_environment_names_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada@example.org")
    assert read_login_name() == "ada@example.org"


@pytest.mark.parametrize("name", ["a\nb", "x" * 129, "\x1b[2J"])
def test_what_is_no_name_gives_the_number_of_the_user(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LOGNAME", name)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert read_login_name() == "4711"


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 4711"), OSError("no name"), ImportError("pwd")])
def test_a_user_that_the_system_does_not_know_has_a_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def getuser() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", getuser)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert read_login_name() == "4711"
