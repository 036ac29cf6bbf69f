"""A client of the controller's own HTTP server: what it knows of runs, and what is asked of them."""

import http.client
import json
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from controller.config import Config
from controller.errors import ConfigError, ControllerError
from controller.ports.orders import PinOwner
from publishers.messages.topics import RunKey
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.http import own_token

TIMEOUT_S: Final = 15.0
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 — what to connect to where it listens there
_MAX_BYTES: Final = 1 << 20


class RefusedError(ControllerError):
    """The controller has refused a request; the message is its own."""


class RunState(NamedTuple):
    """What the controller knows of a run's pauses, pin or goal: see `PauseState`, `PinState` and `GoalState`."""

    key: PinOwner
    fields: dict[str, Any]

    @property
    def ids(self) -> dict[str, str]:
        """Return the names of the run, or of the GPU that is pinned."""
        return {"gpu_uuid": self.key} if isinstance(self.key, str) else self.key._asdict()

    @property
    def state(self) -> str:
        """Return `running`, `asked` or `paused`; of a pin or goal `none`, `asked`, `waiting`, `done` or `failed`."""
        return str(self.fields.get("state", ""))


class OrderClient:
    """Asks the controller of this node.

    Args:
        config: its configuration: where it serves HTTP, and where its token is.
        token_file: another file with a token; None: the controller's own.

    Raises:
        ConfigError: it serves no HTTP, or at a port that nobody knows.
        ControllerError: no token can be read.
    """

    def __init__(self, config: Config, *, token_file: Path | None = None) -> None:
        if config.http.port <= 0:
            raise ConfigError(
                [f"http.port = {config.http.port}: runs are paused and pinned over HTTP: set the controller's port"]
            )
        self._host = _ANY_ADDRESS.get(config.http.host, config.http.host)
        self._port = config.http.port
        self._token = _read_token(Path(config.node.state_dir) / own_token.FILE, token_file)

    def runs(self) -> list[RunState]:
        """Return the runs of the node."""
        listed = self._ask("GET", "/v1/runs")
        return [RunState(RunKey(each["user"], each["job"], each["run"]), each) for each in listed]

    def pause(self, key: RunKey, *, why: str, for_s: float | None) -> RunState:
        """Ask for a pause."""
        return RunState(key, self._ask("POST", f"{_path(key)}/pause", {"why": why, "for_s": for_s}))

    def resume(self, key: RunKey, *, why: str) -> RunState:
        """End a pause."""
        return RunState(key, self._ask("POST", f"{_path(key)}/resume", {"why": why}))

    def state_of(self, key: RunKey) -> RunState:
        """Return how it stands."""
        return RunState(key, self._ask("GET", f"{_path(key)}/pause"))

    def preview_pin(self, owner: PinOwner, *, power_limit_w: float | None, until_s: float) -> RunState:
        """Return what a pin would do: see `PinPreview`; None: one at the prior limit."""
        path, ids = _place(owner)
        body = ids | {"power_limit_w": power_limit_w, "until_s": until_s}
        return RunState(owner, self._ask("POST", f"{path}/pin/preview", body))

    def pin(self, owner: PinOwner, *, power_limit_w: float | None, until_s: float, why: str) -> RunState:
        """Ask for a pin; None: at the prior limit."""
        path, ids = _place(owner)
        body = ids | {"until_s": until_s, "why": why}
        if power_limit_w is None:
            return RunState(owner, self._ask("POST", f"{path}/exempt", body))
        return RunState(owner, self._ask("POST", f"{path}/pin", body | {"power_limit_w": power_limit_w}))

    def release(self, owner: PinOwner, *, why: str) -> RunState:
        """End a pin."""
        path, ids = _place(owner)
        return RunState(owner, self._ask("POST", f"{path}/release", ids | {"why": why}))

    def pin_of(self, owner: PinOwner) -> RunState:
        """Return how a pin stands."""
        if isinstance(owner, RunKey):
            return RunState(owner, self._ask("GET", f"{_path(owner)}/pin"))
        pinned = (each for each in self._ask("GET", "/v1/gpus/pins") if each["gpu_uuid"] == owner)
        return RunState(owner, next(pinned, {"state": "none"}))

    def preview_goal(self, key: RunKey, **terms: float | None) -> RunState:
        """Return what a goal would do: see `GoalPreview`."""
        return RunState(key, self._ask("POST", f"{_path(key)}/goal/preview", terms))

    def aim(self, key: RunKey, *, why: str, **terms: float | None) -> RunState:
        """Set a goal."""
        return RunState(key, self._ask("POST", f"{_path(key)}/goal", terms | {"why": why}))

    def reset_goal(self, key: RunKey, *, why: str) -> RunState:
        """End a goal."""
        return RunState(key, self._ask("POST", f"{_path(key)}/goal/reset", {"why": why}))

    def goal_of(self, key: RunKey) -> RunState:
        """Return how a goal stands."""
        return RunState(key, self._ask("GET", f"{_path(key)}/goal"))

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 — JSON
        """Return the answer to a request.

        Raises:
            ControllerError: nobody answers, or what answers is no controller.
            RefusedError: the controller refuses it.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        where = f"http://{self._host}:{self._port}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read(_MAX_BYTES))
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ControllerError(f"{where}: no controller answers: {why}; does it run with this http.port?") from error
        except ValueError as error:
            raise ControllerError(f"{where}: is no controller of gridchase: {error}") from error
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            detail = answer.get("detail") if isinstance(answer, dict) else None
            raise RefusedError(f"{detail or answer} ({response.status})")
        return answer


def _place(owner: PinOwner) -> tuple[str, dict[str, object]]:
    """Return where a run, or a GPU, is asked for its pin, and what names it in the body."""
    return ("/v1/gpus", {"gpu_uuid": owner}) if isinstance(owner, str) else (_path(owner), {})


def _path(key: RunKey) -> str:
    return f"/v1/jobs/{quote(key.user, safe='')}/{quote(key.job, safe='')}/runs/{quote(key.run, safe='')}"


def _read_token(own: Path, given: Path | None) -> str:
    path = own if given is None else given
    try:
        return own_token.read_token(own) if given is None else read_secret_file("--token-file", str(given))
    except FileNotFoundError as error:
        raise ControllerError(f"{path}: no such file: the controller makes it when it first serves HTTP") from error
    except OSError as error:
        who = own_token.readers_of(path)
        raise ControllerError(f"{path}: {error.strerror}: {who} may read it; or pass --token-file") from error
    except ValueError as error:
        raise ControllerError(str(error)) from error
