"""Sessions: of bounded number and length; forms: only those that were made for a session."""

from controller.web.hands.sessions import IDLE_S, MAX_SESSIONS, SESSION_S, Sessions, new_id
from publishers.shared.http.write_access import Writer

ADA = Writer("ada", "ada")


def begin(sessions: Sessions, now_s: float = 0.0, *, token: bytes = b"digest") -> str:
    return sessions.begin(ADA, "ada", token, now_s)


def test_a_session_ends_when_it_is_not_used() -> None:
    sessions = Sessions()
    session_id = begin(sessions)
    assert sessions.find(session_id, IDLE_S - 1) is not None
    assert sessions.find(session_id, 2 * IDLE_S - 2) is not None, "it was used"
    assert sessions.find(session_id, 3 * IDLE_S - 2) is None
    assert sessions.find(session_id, 3 * IDLE_S - 2) is None


def test_a_session_ends_after_a_day_of_work_however_much_it_is_used() -> None:
    sessions = Sessions()
    session_id, now_s = begin(sessions), 0.0
    while now_s < SESSION_S:
        assert sessions.find(session_id, now_s) is not None
        now_s += IDLE_S / 2
    assert sessions.find(session_id, now_s) is None


def test_of_too_many_sessions_the_one_that_was_used_longest_ago_ends() -> None:
    sessions = Sessions()
    first, second = begin(sessions), begin(sessions)
    assert sessions.find(first, 1.0) is not None
    for number in range(MAX_SESSIONS - 1):
        begin(sessions, 2.0, token=b"%d" % number)
    assert sessions.find(second, 3.0) is None
    assert sessions.find(first, 3.0) is not None


def test_a_token_that_signs_in_without_end_ends_its_own_sessions_alone() -> None:
    sessions = Sessions()
    of_another, first = begin(sessions, token=b"another"), begin(sessions)
    ids = [begin(sessions, 1.0) for _ in range(2 * MAX_SESSIONS)]
    assert sessions.find(first, 2.0) is None
    assert sessions.find(of_another, 2.0) is not None
    assert sessions.find(ids[-1], 2.0) is not None


def test_ids_are_long_and_no_two_are_the_same_and_none_is_kept() -> None:
    sessions = Sessions()
    ids = [begin(sessions) for _ in range(32)]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == len(new_id()) == 43 for each in ids)
    assert not any(each in repr(vars(sessions)) for each in ids)
    sessions.end(ids[0])
    assert sessions.find(ids[0], 0.0) is None
    assert sessions.find("", 0.0) is None


def test_the_code_of_a_form_is_for_one_session_one_form_and_one_process() -> None:
    sessions, others = Sessions(), Sessions()
    code = sessions.form_code("a", "/sign-in")
    assert sessions.is_form_code(code, "a", "/sign-in")
    assert not sessions.is_form_code(code, "b", "/sign-in")
    assert not sessions.is_form_code(code, "a", "/sign-out")
    assert not others.is_form_code(code, "a", "/sign-in")
    for forged in ("", code[:-1], code.upper(), "\u00e9" * 64, "\udcff"):
        assert not sessions.is_form_code(forged, "a", "/sign-in")
