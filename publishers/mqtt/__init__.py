"""MQTT: the asyncio client, its outbox, the address of a broker, and an embedded broker."""
