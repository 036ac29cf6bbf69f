"""Limits are pinned and released over HTTP, by who may; what is refused says why."""

from pathlib import Path

import pytest

from controller.errors import OrderRefusedError
from publishers.shared.http import own_token
from tests.controller.http.test_server import GPU, RUN, Server, post

UNTIL_S = 1_700_000_000.0
PIN = {"power_limit_w": 205, "until_s": UNTIL_S, "why": "tea"}


async def test_whoever_has_the_controllers_own_token_pins_and_releases() -> None:
    server = Server()
    async with server.serving() as client:
        token = own_token.read_token(server.own_token)
        preview = {"power_limit_w": 205, "until_s": UNTIL_S}
        status, answer = await post(client, f"{RUN}/pin/preview", preview, token=token)
        assert (status, answer["speed_ratio"], answer["sentence"]) == (200, 0.95, "at 205 W …")
        assert server.pins.asked == [], "a preview changes nothing"
        status, answer = await post(client, f"{RUN}/pin", PIN, token=token)
        assert (status, answer["state"], answer["by"]) == (202, "asked", "the operator of this node")
        assert server.pins.asked == [(205.0, UNTIL_S, "tea", "the operator of this node")]
        async with client.get(f"{RUN}/pin") as response:
            assert (response.status, (await response.json())["until_s"]) == (200, UNTIL_S)
        status, answer = await post(client, f"{RUN}/release", {"why": "done"}, token=token)
        assert (status, answer["state"]) == (200, "none")


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_nobody_else_pins(token: str | None) -> None:
    server = Server()
    async with server.serving() as client:
        for leaf, body in (("pin", PIN), ("pin/preview", {}), ("release", {})):
            assert (await post(client, f"{RUN}/{leaf}", body, token=token))[0] == 401
    assert server.pins.asked == []


async def test_a_token_of_a_user_pins_that_users_runs_alone(tmp_path: Path) -> None:
    server, tokens = Server(), tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ada:of-ada\nbob:of-bob\n")
    server.token_file = str(tokens)
    async with server.serving() as client:
        answers = [await post(client, f"{RUN}/pin", PIN, token=f"of-{who}") for who in ("ada", "bob")]
        await post(client, f"{RUN}/release", {}, token="of-ada")
        for leaf, body in (("pin", PIN), ("release", {})):
            assert (await post(client, f"{RUN}/{leaf}", body, token=own_token.read_token(server.own_token)))[0] < 300
    assert [status for status, _ in answers] == [202, 403]
    assert [by for *_, by in server.pins.asked] == ["ada", "the operator of this node"]
    assert server.pins.owners == ["ada", "ada"], "she pins and releases as the user, the others as operators"


async def test_an_operator_pins_a_gpu_and_no_user_does(tmp_path: Path) -> None:
    server, tokens = Server(), tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ada:of-ada\nof-the-operator\n")
    server.token_file = str(tokens)
    async with server.serving() as client:
        exempt = {"until_s": UNTIL_S, "why": "a demo"}
        preview = {"power_limit_w": 205, "until_s": UNTIL_S}
        for leaf, body in (("pin", PIN), ("exempt", exempt), ("pin/preview", preview), ("release", {})):
            named = body | {"gpu_uuid": GPU}
            assert (await post(client, f"/v1/gpus/{leaf}", named, token="of-ada"))[0] == 403
            assert (await post(client, f"/v1/gpus/{leaf}", named, token=None))[0] == 401
            assert (await post(client, f"/v1/gpus/{leaf}", body, token="of-the-operator"))[0] == 400, "no GPU is named"
            assert (await post(client, f"/v1/gpus/{leaf}", named, token="of-the-operator"))[0] in {200, 202}
        async with client.get("/v1/gpus/pins") as response:
            assert [each["gpu_uuid"] for each in await response.json()] == [GPU]
    limits_w = [(limit_w, by) for limit_w, *_, by in server.pins.asked]
    assert limits_w == [(205.0, "an operator"), (None, "an operator")]
    assert server.pins.owners == []


@pytest.mark.parametrize(
    ("leaf", "body", "status"),
    [
        ("pin", {"power_limit_w": 205, "until_s": UNTIL_S}, 400),
        ("pin", PIN | {"why": ""}, 400),
        ("pin", PIN | {"why": 121 * "x"}, 400),
        ("pin", PIN | {"power_limit_w": 0}, 400),
        ("pin", PIN | {"power_limit_w": "205 W"}, 400),
        ("pin", PIN | {"until_s": -1}, 400),
        ("pin", PIN | {"for_s": 60}, 400),
        ("pin", {"power_limit_w": 205, "why": "for ever"}, 400),
        ("pin/preview", PIN, 400),
        ("release", {"why": 121 * "x"}, 400),
        ("pin", {"until_s": UNTIL_S, "why": "no limit"}, 400),
        ("exempt", PIN, 400),
        ("pin", PIN | {"why": 5_000 * "x"}, 413),
    ],
)
async def test_a_request_that_is_wrong_is_refused(leaf: str, body: object, status: int) -> None:
    server = Server()
    async with server.serving() as client:
        assert (await post(client, f"{RUN}/{leaf}", body, token=own_token.read_token(server.own_token)))[0] == status
    assert server.pins.asked == []


@pytest.mark.parametrize(
    ("reason", "status"), [("unknown_run", 404), ("bad_time", 422), ("observe_mode", 409), ("no_permission", 409)]
)
async def test_why_a_run_cannot_be_pinned_is_the_answer(reason: str, status: int) -> None:
    server = Server()
    server.pins.error = OrderRefusedError(reason, "because")
    async with server.serving() as client:
        answer = await post(client, f"{RUN}/pin", PIN, token=own_token.read_token(server.own_token))
    assert (answer[0], answer[1]["reason"], answer[1]["detail"]) == (status, reason, "because")
