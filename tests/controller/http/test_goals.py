"""Goals are set and reset over HTTP, by who may; what is no goal is refused before anything is asked."""

from pathlib import Path

import pytest

from publishers.shared.http import own_token
from tests.controller.http.test_server import RUN, Server, post

UNTIL_S = 1_700_000_000.0
BUDGET = {"max_slowdown_ratio": 1.08, "until_s": UNTIL_S, "why": "tea"}
DEADLINE = {"deadline_s": UNTIL_S, "why": "tea"}


async def test_whoever_has_the_controllers_own_token_sets_and_resets() -> None:
    server = Server()
    async with server.serving() as client:
        token = own_token.read_token(server.own_token)
        status, answer = await post(client, f"{RUN}/goal/preview", {"max_slowdown_ratio": 1.08}, token=token)
        assert (status, answer["planned_power_limit_w"], answer["sentence"]) == (200, 205.0, "with a …")
        assert server.goals.asked == [], "a preview changes nothing"
        by = "the operator of this node"
        for body in (BUDGET, DEADLINE):
            status, answer = await post(client, f"{RUN}/goal", body, token=token)
            assert (status, answer["state"], answer["by"]) == (202, "asked", by)
        assert server.goals.asked == [BUDGET | {"by": by}, DEADLINE | {"by": by}]
        async with client.get(f"{RUN}/goal") as response:
            assert (response.status, (await response.json())["max_slowdown_ratio"]) == (200, 1.08)
        status, answer = await post(client, f"{RUN}/goal/reset", {"why": "done"}, token=token)
        assert (status, answer["state"]) == (200, "none")
        status, answer = await post(client, f"{RUN}/exempt", {"until_s": UNTIL_S, "why": "tea"}, token=token)
        assert (status, server.pins.asked) == (202, [(None, UNTIL_S, "tea", by)])


async def test_nobody_else_does_and_a_user_of_own_runs_alone(tmp_path: Path) -> None:
    server, tokens = Server(), tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ada:of-ada\nbob:of-bob\n")
    server.token_file = str(tokens)
    exempt = {"until_s": UNTIL_S, "why": "tea"}
    async with server.serving() as client:
        for leaf, body in (("goal", BUDGET), ("goal/preview", {"deadline_s": UNTIL_S}), ("exempt", exempt)):
            answers = [await post(client, f"{RUN}/{leaf}", body, token=token) for token in (None, "wrong", "of-bob")]
            assert [status for status, _ in answers] == [401, 401, 403]
        assert server.goals.asked == []
        assert (await post(client, f"{RUN}/goal", BUDGET, token="of-ada"))[0] == 202


@pytest.mark.parametrize(
    ("leaf", "body"),
    [
        ("goal", {"max_slowdown_ratio": 1.08}),
        ("goal", BUDGET | {"why": ""}),
        ("goal", BUDGET | {"max_slowdown_ratio": 0.99}),
        ("goal", BUDGET | {"max_slowdown_ratio": 11}),
        ("goal", BUDGET | {"max_slowdown_ratio": "8 %"}),
        ("goal", BUDGET | {"until_s": -1}),
        ("goal", DEADLINE | {"deadline_s": 1e300}),
        ("goal", DEADLINE | {"budget": 3}),
        ("goal/preview", BUDGET),
        ("exempt", {"until_s": UNTIL_S}),
        ("exempt", {"until_s": UNTIL_S, "why": "tea", "power_limit_w": 205}),
    ],
)
async def test_what_is_no_goal_is_refused(leaf: str, body: dict[str, object]) -> None:
    server = Server()
    async with server.serving() as client:
        token = own_token.read_token(server.own_token)
        assert (await post(client, f"{RUN}/{leaf}", body, token=token))[0] == 400
    assert (server.goals.asked, server.pins.asked) == ([], [])
