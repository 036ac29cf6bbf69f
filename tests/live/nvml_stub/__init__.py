"""A machine with GPUs that follow measured curves, behind a real `libnvidia-ml.so.1` that the tests compile from C."""
