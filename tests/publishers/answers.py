"""What a policy service answers to a question for a batch size."""

from publishers.wire import TrialAnswer, TrialRequest
from tests.publishers.fake_connection import FakeConnection

SIZES = [8, 16, 32, 64]


def answer(request: TrialRequest, **changes: object) -> TrialAnswer:
    """Return what a policy service would say."""
    fields: dict[str, object] = {
        "run": request.run,
        "correlation": request.correlation,
        "batch_size": 16,
        "reason": "explored",
        "detail": "little is known of 16",
        "recurrence": 3,
        "cost_bound": 5e5,
        "lease_s": 600.0,
    }
    return TrialAnswer(**{**fields, **changes})  # type: ignore[arg-type]  # by name


def answering(**changes: object) -> FakeConnection:
    return FakeConnection(answers=lambda request: [answer(request, **changes)])
