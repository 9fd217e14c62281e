"""Tests that prefetched tensors equal those that the safetensors library reads, for all sizes and files."""

import itertools
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.errors import ConfigError
from runtime.weights import shard_stream
from runtime.weights.shard_stream import Shard, segments, stream_tensors, tensor_ranges

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(shard_stream, "BUFFER_BYTES", 100)
    monkeypatch.setattr(shard_stream, "SEGMENT_BYTES", 400)


@pytest.fixture
def shards(tmp_path):
    """Returns a function that writes files and returns the shards that read them."""
    opened = []

    def write(count):
        for number in range(count):
            generator = torch.Generator().manual_seed(number)
            tensors = {
                f"{number}.{size}": torch.rand(size, 7, generator=generator).to(dtype)
                for size, dtype in [
                    (0, torch.float32), (1, torch.float16), (3, torch.bfloat16), (40, torch.float64), (100, torch.int8)
                ]
            }  # fmt: skip
            save_file(tensors, tmp_path / f"{number}.safetensors")
            opened.append(os.open(tmp_path / f"{number}.safetensors", os.O_RDONLY))
        return [
            Shard(f"{number}.safetensors", file, sorted(tensor_ranges(file, "file").values(), key=lambda at: at.start))
            for number, file in enumerate(opened)
        ]

    yield write
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_tensor_is_read_once_and_completely(shards, tmp_path, count):
    read = {}
    with stream_tensors(shards(count), CPU) as tensors:
        for at, data in tensors:
            assert at.name not in read
            read[at.name] = data.clone()
    expected = {
        name: each for number in range(count) for name, each in load_file(tmp_path / f"{number}.safetensors").items()
    }
    assert read.keys() == expected.keys()
    for name, each in expected.items():
        assert read[name].dtype == each.dtype, name
        assert torch.equal(read[name], each), name


def test_segments_are_contiguous_and_bounded(shards):
    for group in segments(shards(1)[0].tensors):
        assert len(group) == 1 or group[-1].stop - group[0].start <= shard_stream.SEGMENT_BYTES
        assert all(before.stop == after.start for before, after in itertools.pairwise(group))


def test_tensors_with_unaligned_bytes(tmp_path):
    header = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
        }
    ).encode()
    values = torch.tensor([1.5, -2.0])
    data = len(header).to_bytes(8, "little") + header + b"xyz" + values.numpy().tobytes()
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        ranges = tensor_ranges(file.fileno(), "file")
        with stream_tensors([Shard("file", file.fileno(), [ranges["a"], ranges["b"]])], CPU) as tensors:
            read = {at.name: each.clone() for at, each in tensors}
    assert torch.equal(read["b"], values)


def test_a_file_that_ends_early_is_named(shards, tmp_path):
    made = shards(2)
    os.truncate(tmp_path / "1.safetensors", made[1].tensors[-1].stop - 1)
    with (
        pytest.raises(ConfigError, match=r"1\.safetensors is shorter than its header states"),
        stream_tensors(made, CPU) as tensors,
    ):
        for _ in tensors:
            pass


@pytest.mark.parametrize("used", [0, 1, 5])
def test_reading_may_end_before_all_is_read(shards, used):
    with stream_tensors(shards(12), CPU) as tensors:
        for _ in range(used):
            next(tensors)
