"""The fault campaign with real processes: the real controller on the driver's stub, a broker, and a disk that fails."""
