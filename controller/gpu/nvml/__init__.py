"""NVIDIA GPUs through NVML: the backend, its calls and their errors, and a thread for each GPU."""
