"""The OpenAPI 3.1 document of the controller's HTTP API.

`python -m controller.http.openapi > docs/controller-api.json` makes it anew; a test keeps it equal to what is served.
"""

import sys
from collections.abc import Mapping
from typing import Final

from controller.http.goals import GoalPreviewRequest, GoalRequest
from controller.http.health import Liveness, Readiness
from controller.http.orders import PATH
from controller.http.pauses import ListedRun, PauseRequest, ResumeRequest
from controller.http.pins import (
    ExemptRequest,
    GpuExemptRequest,
    GpuPinPreviewRequest,
    GpuPinRequest,
    GpuReleaseRequest,
    PinPreviewRequest,
    PinRequest,
    ReleaseRequest,
)
from controller.ports.orders import GoalPreview, GoalState, PauseState, PinPreview, PinState
from publishers.shared.http.openapi import Api, Operation, describe

_DESCRIPTION: Final = """\
How a controller is, and what people ask of the runs on its node: to pause, to go on, to keep a power limit, a
time budget or a deadline.

Health and metrics are open. Of runs, whoever asks on the controller's machine reads without a token; all else needs
one.
All times are Unix seconds, durations seconds.
"""
_API: Final = Api(
    title="gridchase controller",
    description=_DESCRIPTION,
    port=9321,
    problems={
        400: "It cannot be read: a name or the body is not what this document says.",
        404: "No such run trains on this node now, or it has no such GPU.",
        409: "The run cannot be paused, pinned or planned so, or not by this controller, or not by a user.",
        413: "The body is longer than 4 KiB.",
        422: "It can be read, but asks for what cannot be, as a pause or a pin that is too long, or gives no reason.",
    },
    scheme="what `http.token` in the state directory of the controller holds, or a line of `http.token_file`",
)
_OF_A_RUN: Final = (400, 401, 404)
_WITH_BODY: Final = (*_OF_A_RUN, 408, 413, 415)
OPERATIONS: Final[Mapping[str, Operation]] = {
    "live": Operation(summary="Whether the process lives", path="/healthz", answer=Liveness),
    "ready": Operation(
        summary="Whether the controller can do its work", path="/readyz", answer=Readiness, other_answer=503
    ),
    "metrics": Operation(summary="Metrics for Prometheus", path="/metrics", content_type="text/plain"),
    "listRuns": Operation(
        summary="The runs that train on this node now, with their pauses",
        path="/v1/runs",
        answer=list[ListedRun],
        problems=(401,),
        access="remote",
    ),
    "showPause": Operation(
        summary="The pauses of a run",
        path=f"{PATH}/pause",
        answer=PauseState,
        problems=_OF_A_RUN,
        access="remote",
    ),
    "pause": Operation(
        summary="Ask a run to pause, or change until when and why it does",
        path=f"{PATH}/pause",
        method="POST",
        answer=PauseState,
        status=202,
        body=PauseRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "resume": Operation(
        summary="End the pause of a run, if it has one",
        path=f"{PATH}/resume",
        method="POST",
        answer=PauseState,
        body=ResumeRequest,
        problems=_WITH_BODY,
        access="write",
    ),
    "showPin": Operation(
        summary="The pinned limit of a run",
        path=f"{PATH}/pin",
        answer=PinState,
        problems=_OF_A_RUN,
        access="remote",
    ),
    "pin": Operation(
        summary="Hold all GPUs of a run at a limit until a time, instead of a pin that it may have",
        path=f"{PATH}/pin",
        method="POST",
        answer=PinState,
        status=202,
        body=PinRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "previewPin": Operation(
        summary="What a pin would do; nothing is changed",
        path=f"{PATH}/pin/preview",
        method="POST",
        answer=PinPreview,
        body=PinPreviewRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "exempt": Operation(
        summary="Leave a run at its prior limit until a time, instead of a pin that it may have",
        path=f"{PATH}/exempt",
        method="POST",
        answer=PinState,
        status=202,
        body=ExemptRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "release": Operation(
        summary="End the pin of a run, if it has one",
        path=f"{PATH}/release",
        method="POST",
        answer=PinState,
        body=ReleaseRequest,
        problems=(*_WITH_BODY, 409),
        access="write",
    ),
    "listGpuPins": Operation(
        summary="The GPUs that are pinned",
        path="/v1/gpus/pins",
        answer=list[PinState],
        problems=(401,),
        access="remote",
    ),
    "pinGpu": Operation(
        summary="Hold each run that has a GPU at a limit until a time; for operators alone",
        path="/v1/gpus/pin",
        method="POST",
        answer=PinState,
        status=202,
        body=GpuPinRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "previewGpuPin": Operation(
        summary="What a pin of a GPU would do; nothing is changed",
        path="/v1/gpus/pin/preview",
        method="POST",
        answer=PinPreview,
        body=GpuPinPreviewRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "exemptGpu": Operation(
        summary="Leave each run that has a GPU at its prior limit until a time; for operators alone",
        path="/v1/gpus/exempt",
        method="POST",
        answer=PinState,
        status=202,
        body=GpuExemptRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "releaseGpu": Operation(
        summary="End the pin of a GPU, if it has one",
        path="/v1/gpus/release",
        method="POST",
        answer=PinState,
        body=GpuReleaseRequest,
        problems=_WITH_BODY,
        access="write",
    ),
    "showGoal": Operation(
        summary="The goal that a person has set for a run",
        path=f"{PATH}/goal",
        answer=GoalState,
        problems=_OF_A_RUN,
        access="remote",
    ),
    "setGoal": Operation(
        summary="Have the plan of a run keep to a time budget or a deadline, instead of the configured objective",
        path=f"{PATH}/goal",
        method="POST",
        answer=GoalState,
        status=202,
        body=GoalRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "previewGoal": Operation(
        summary="What a goal would do; nothing is changed",
        path=f"{PATH}/goal/preview",
        method="POST",
        answer=GoalPreview,
        body=GoalPreviewRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "resetGoal": Operation(
        summary="End the goal that a person has set for a run, if there is one",
        path=f"{PATH}/goal/reset",
        method="POST",
        answer=GoalState,
        body=ReleaseRequest,
        problems=_WITH_BODY,
        access="write",
    ),
}
"""What is served, by the name of its route."""


def document() -> bytes:
    """Return the document as JSON."""
    return describe(_API, OPERATIONS)


if __name__ == "__main__":
    sys.stdout.write(document().decode())
