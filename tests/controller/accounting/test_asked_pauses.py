"""The pauses that a status tells of, as spans of time."""

import pytest

from controller.accounting.asked_pauses import AskedPauses


@pytest.mark.parametrize(
    ("time_ns", "is_covered"),
    [(9, False), (10, True), (19, True), (20, False), (29, False), (30, True), (10**12, True)],
)
def test_a_pause_lasts_from_what_the_status_says_to_the_status_that_says_no_more(
    time_ns: int, *, is_covered: bool
) -> None:
    pauses = AskedPauses()
    for since_ns, now_ns in ((None, 5), (10, 11), (10, 15), (None, 20), (None, 25), (30, 31)):
        pauses.update(since_ns, now_ns=now_ns)
    assert pauses.is_paused
    assert pauses.covers(time_ns) == is_covered


def test_a_pause_whose_end_was_not_heard_ends_where_the_next_one_begins() -> None:
    pauses = AskedPauses()
    pauses.update(10, now_ns=11)
    pauses.update(30, now_ns=31)
    pauses.update(None, now_ns=40)
    assert [pauses.covers(time_ns) for time_ns in (10, 29, 39, 40)] == [True, True, True, False]
    assert not pauses.is_paused
