"""The controller's errors: attributes hold the data; the message gives value, bound, unit and remedy."""


class ControllerError(Exception):
    """Any error of gridchase itself."""


class ConfigError(ControllerError):
    """The configuration or the arguments are wrong; `faults` lists every one of them, a line each."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class JournalError(ControllerError):
    """The journal of prior limits cannot be read or written: no GPU may be touched."""


class NodeLockedError(ControllerError):
    """Another controller already writes to this node's GPUs.

    Attributes:
        is_restoring: whether it only restores limits, and ends then.
    """

    def __init__(self, message: str, *, is_restoring: bool = False) -> None:
        super().__init__(message)
        self.is_restoring = is_restoring


class BackendError(ControllerError):
    """The GPU backend as a whole is not available: no driver, no library, the wrong Python package."""


class DriverUnavailableError(BackendError):
    """The driver or its library is missing, or does not answer; it may come later."""


class LimitsLeftError(ControllerError):
    """The prior limits of some GPUs could not be restored; `faults` tells which limits they still have, a line each."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class RequestRefusedError(ControllerError):
    """What a person asks of a run is refused; `reason` is a stable code."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class PauseRefusedError(RequestRefusedError):
    """A run cannot be paused, or does not exist."""


class OrderRefusedError(RequestRefusedError):
    """The limit or the goal of a run cannot be set so, or the run does not exist."""


class GpuError(ControllerError):
    """A call to one GPU failed."""

    def __init__(self, message: str, *, gpu_uuid: str, operation: str, code: int | None = None) -> None:
        self.gpu_uuid = gpu_uuid
        self.operation = operation
        self.code = code
        super().__init__(f"{operation} on {gpu_uuid}: {message}")


class GpuPermissionError(GpuError):
    """Writing needs CAP_SYS_ADMIN; reading never does."""


class GpuNotSupportedError(GpuError):
    """This GPU or driver does not offer the operation."""


class GpuLimitError(GpuError):
    """The power limit lies outside what the GPU accepts."""


class GpuLostError(GpuError):
    """The GPU fell off the bus or needs a reset."""


class GpuSuspectError(GpuError):
    """The GPU did not answer within its deadline; nothing more is sent to it until it does."""


def leaf_errors(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions in a group and in the groups within it."""
    return [
        leaf
        for error in group.exceptions
        for leaf in (leaf_errors(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
