"""The error of the embedded broker, in its own module so that catching it does not import the MQTT client."""


class BrokerError(RuntimeError):
    """The embedded broker could not be started; the message says what to do."""
