"""The GPUs: NVML's, and simulated ones that follow measured curves."""
