"""What can go wrong in the policy service. Each message says value, bound and what to do."""


class PolicyError(Exception):
    """The root of this tree."""

    reason = "failed"
    """A stable code, for answers on the bus and over HTTP."""


class RequestError(PolicyError):
    """What was asked is wrong in itself: no candidates, duplicates, a default that is not among them, a bad number."""

    reason = "invalid_request"

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class JobMismatchError(PolicyError):
    """The job exists, with other candidates or another default: what was learned would be of something else."""

    reason = "job_mismatch"


class UnknownJobError(PolicyError):
    """There is no job of this name."""

    reason = "unknown_job"


class UnknownTrialError(PolicyError):
    """There is no trial of this run."""

    reason = "unknown_trial"


class TrialConflictError(PolicyError):
    """The trial has ended already, with another outcome."""

    reason = "trial_conflict"


class StoreUnavailableError(PolicyError):
    """The database does not answer, or is full: what was told must be told again later."""

    reason = "store_unavailable"


class StoreVersionError(PolicyError):
    """The database has the schema of a newer version: this one must not touch it."""

    reason = "store_version"


def unknown_trial(job: str, run: str) -> UnknownTrialError:
    """Return the error of a run that has never asked for a batch size."""
    return UnknownTrialError(f"run {run} of job {job} has no trial: it must ask for a batch size first")
