"""Measurements on a real GPU, which is only read: no limit, clock or mode is ever written.

    python -m tests.device.record DIR          # trainings: their marks by hook and by CUDA events, and the meters
    python -m tests.benchmarks.h100 --data DIR # how precise rate and power are, host against device
    python -m tests.device.cost                # what publishing costs the training's thread
    gridchase up --set plan.observe=true       # A/A: and beside it
    gridchase run -- python -m tests.device.record DIR

They need PyTorch, and NVML for the meters; without a GPU that PyTorch can use they say that they skip.
"""
