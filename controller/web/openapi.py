"""The OpenAPI 3.1 document of what a site's process serves.

`python -m controller.web.openapi > docs/web-api.json` makes it anew; a test keeps it equal to what is served.
"""

import sys
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from controller.history.energy_history.query import Report
from controller.web.live.event_stream import LiveValues
from controller.web.routes import PosteriorRequest, ReportRequest
from publishers.messages.reports import JobPosterior
from publishers.shared.http.openapi import Api, Operation, describe

_DESCRIPTION: Final = """\
What the runs and GPUs of a site have used and saved. Whoever reaches it may read; with `web.sign_in_to_read`, whoever
has a token of `web.token_file` (`Authorization: Bearer TOKEN`), or a session of the page. Nothing can be written here:
orders are given on the page, as forms.

All times are Unix seconds, durations seconds, energies joules, carbon grams.
"""
_API: Final = Api(
    title="gridchase web",
    description=_DESCRIPTION,
    port=9323,
    problems={
        400: "A parameter is not what this document says.",
        401: "With `web.sign_in_to_read`: the token is missing, or is not known.",
        404: "No such job is known.",
        403: "A browser asks a loopback address by its name.",
        503: "The history cannot be read now, or too many are asking: ask again.",
    },
)


class SiteHealth(Struct, frozen=True, kw_only=True):
    """Whether the process does its work; `troubles` is what keeps it from that, a sentence each."""

    status: Literal["ok", "degraded"]
    troubles: list[str]


OPERATIONS: Final[Mapping[str, Operation]] = {
    "health": Operation(
        summary="Whether the process does its work", path="/healthz", answer=SiteHealth, other_answer=503
    ),
    "metrics": Operation(summary="Metrics for Prometheus", path="/metrics", content_type="text/plain"),
    "events": Operation(
        summary="What has changed, as server-sent events: at once, then once a second at most, and a heartbeat",
        path="/v1/events",
        problems=(401,),
        content_type="text/event-stream",
    ),
    "state": Operation(summary="What the pages show now", path="/v1/state", answer=LiveValues, problems=(401,)),
    "posterior": Operation(
        summary="What the policy service has learnt of a job's batch sizes",
        path="/v1/posterior",
        answer=JobPosterior,
        query=PosteriorRequest,
        other_content_types=("text/csv",),
        problems=(400, 401, 404),
    ),
    "report": Operation(
        summary="What was used and saved, by job, user, day, run, GPU or node",
        path="/v1/report",
        answer=Report,
        query=ReportRequest,
        other_content_types=("text/csv",),
        problems=(400, 401),
    ),
}
"""What is served, by the name of its route."""


def document() -> bytes:
    """Return the document as JSON."""
    return describe(_API, OPERATIONS)


if __name__ == "__main__":
    sys.stdout.write(document().decode())
