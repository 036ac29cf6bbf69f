"""The clock of a server, which its answers tell: one that differs from ours shows that one of the two is wrong."""

import pytest
from aiohttp import web

from policies.providers.base import SignalDataError, SignalLimitedError
from tests.policies.providers.http_bench import answering, asking

pytestmark = pytest.mark.live
DATED_S = 1_792_929_600.0
"""2026-10-25T12:00Z."""


@pytest.mark.parametrize(
    ("headers", "later_s", "told"),
    [
        ({}, 3_601.0, True),
        ({}, -3_601.0, True),
        ({}, 3_600.0, False),
        ({}, -3_600.0, False),
        ({"Age": "7200"}, 7_200.0, False),
        ({"Age": "7200"}, 0.0, True),
        ({"Age": "old"}, 0.0, False),
        ({"Date": "yesterday"}, 1e6, False),
    ],
)
@pytest.mark.parametrize("status", [200, 304])
async def test_a_server_whose_clock_is_not_ours_is_not_believed(
    status: int, headers: dict[str, str], later_s: float, *, told: bool
) -> None:
    dated = {"Date": "Sun, 25 Oct 2026 12:00:00 GMT", "ETag": '"v1"'} | headers

    def reply(_: web.Request, number: int) -> web.Response:
        return web.Response(status=status if number > 1 else 200, headers=dated)

    async with asking(reply) as case:
        await case.get()
        if not told:
            await case.get(now_s=DATED_S + later_s)
            return
        with pytest.raises(
            SignalDataError, match=r"here: its clock says 2026-10-25T1.:00Z, and here it is .* wrong by"
        ):
            await case.get(now_s=DATED_S + later_s)


async def test_a_server_that_refuses_is_told_by_that_and_not_by_its_clock() -> None:
    async with asking(answering(status=429, headers={"Date": "Sun, 25 Oct 2026 12:00:00 GMT"})) as case:
        with pytest.raises(SignalLimitedError):
            await case.get(now_s=0.0)
