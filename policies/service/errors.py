"""Errors of the policy service. Each message gives the value, its bound and what to do."""

from http import HTTPStatus

from publishers.messages.topics import RunKey


class PolicyError(Exception):
    """The root of this tree."""

    reason = "failed"
    """A stable code, for answers on the bus and over HTTP."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    """Of the answer over HTTP."""


class RequestError(PolicyError):
    """The request contradicts itself: no candidates, duplicates, a default that is none of them, an invalid number."""

    reason = "invalid_request"
    status = HTTPStatus.UNPROCESSABLE_ENTITY

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class JobMismatchError(PolicyError):
    """The job exists, with other candidates or another default: what was learned would be of something else."""

    reason = "job_mismatch"
    status = HTTPStatus.CONFLICT


class TooManyJobsError(PolicyError):
    """The user has as many jobs as one may have: a flood of names must not fill the database."""

    reason = "too_many_jobs"
    status = HTTPStatus.CONFLICT


class UnknownJobError(PolicyError):
    """There is no job of this name."""

    reason = "unknown_job"
    status = HTTPStatus.NOT_FOUND


class UnknownTrialError(PolicyError):
    """There is no trial of this run."""

    reason = "unknown_trial"
    status = HTTPStatus.NOT_FOUND


class TrialConflictError(PolicyError):
    """The trial has ended already, with another outcome."""

    reason = "trial_conflict"
    status = HTTPStatus.CONFLICT


class StoreUnavailableError(PolicyError):
    """The database does not answer, or is full: the report must be repeated later."""

    reason = "store_unavailable"
    status = HTTPStatus.SERVICE_UNAVAILABLE


class StoreVersionError(PolicyError):
    """The database has the schema of another version: this one must not touch it."""

    reason = "store_version"
    status = HTTPStatus.SERVICE_UNAVAILABLE


def unknown_trial(run: RunKey) -> UnknownTrialError:
    """Return the error of a run that has never asked for a batch size."""
    return UnknownTrialError(
        f"run {run.run} of job {run.user}/{run.job} has no trial: it must ask for a batch size first"
    )
