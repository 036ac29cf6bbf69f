"""The history of a site: a process of its own, without privilege, that knows the bus and the history alone."""
