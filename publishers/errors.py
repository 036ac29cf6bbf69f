"""The error of the embedded broker, apart, so that catching it loads no MQTT client."""


class BrokerError(RuntimeError):
    """The embedded broker could not be started; the message says what to do."""
