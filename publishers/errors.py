"""What can go wrong with a broker of our own."""


class BrokerError(RuntimeError):
    """The broker could not be started; the message says what to do."""
