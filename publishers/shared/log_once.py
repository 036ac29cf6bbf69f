"""Log a fault once when it begins, once when it changes and once when it is over, however often it is reported."""

import logging


class FaultLog:
    """The present fault of one component, logged on transitions only.

    Args:
        logger: the component's logger.
        recovered: the sentence logged at INFO when the fault is over; "" logs nothing.
        level: the level at which a fault is logged.
        log_changes: whether another fault that replaces the present one is logged, too.
    """

    def __init__(
        self, logger: logging.Logger, *, recovered: str = "", level: int = logging.WARNING, log_changes: bool = True
    ) -> None:
        self.fault = ""
        self._logger = logger
        self._recovered = recovered
        self._level = level
        self._log_changes = log_changes

    def report(self, fault: str) -> None:
        """Set the present fault; "" means there is none."""
        before, self.fault = self.fault, fault
        if fault == before:
            return
        if fault and (self._log_changes or not before):
            self._logger.log(self._level, "%s", fault)
        elif not fault and self._recovered:
            self._logger.info("%s", self._recovered)

    def clear(self) -> None:
        """Report that all is well."""
        self.report("")
