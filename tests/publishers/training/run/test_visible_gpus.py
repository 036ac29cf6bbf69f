"""What a process shows of the GPUs that it uses."""

from pathlib import Path

from publishers.training.run.visible_gpus import has_loaded_cuda

ON_THE_CPU = """\
7f3a10000000-7f3a10021000 r--p 00000000 08:01 1311 /opt/torch/lib/libtorch_cuda.so
7f3a20000000-7f3a20021000 r--p 00000000 08:01 1312 /usr/local/cuda/lib64/libcudart.so.12.4.127
"""
WITH_CUDA = "7f3a30000000-7f3a30021000 r--p 00000000 08:01 1313 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15\n"


def test_cuda_counts_as_loaded_if_its_driver_is_mapped_or_unknown(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    assert has_loaded_cuda(maps)
    maps.write_text(ON_THE_CPU)
    assert not has_loaded_cuda(maps)
    maps.write_text(ON_THE_CPU + WITH_CUDA)
    assert has_loaded_cuda(maps)


def test_the_memory_map_of_this_process_has_no_cuda() -> None:
    assert not has_loaded_cuda(Path("/proc/self/maps"))
