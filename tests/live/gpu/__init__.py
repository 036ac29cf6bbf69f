"""Live tests of GPUs: driver threads, locks, and NVML on a stub of its library."""
