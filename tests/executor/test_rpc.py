"""Tests of messages with arrays over a socket."""

import dataclasses
import socket
import threading
from dataclasses import is_dataclass, replace

import numpy as np
import pytest

from runtime.algorithms.base import get_algorithm
from runtime.executor.rpc import AdapterPair, ConnectionClosed, Hello, RpcConnection, Sample, Step
from runtime.executor.serialization import decode_blocks, decode_forward, encode_blocks, encode_forward
from runtime.scheduling.step_plan import (
    AlgorithmBatch,
    DenoiseBlocks,
    ForcedTokens,
    LogitsProcessorBatch,
    PageWrites,
    SoftEmbeddingRows,
    StateWrite,
    StepPlan,
)


@pytest.fixture
def wires():
    ours, theirs = map(RpcConnection, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_arrays_are_received_unchanged(wires):
    ours, theirs = wires
    sent = [
        np.zeros((0, 3), np.int32), np.array([[1, -2]], np.int8), np.array([True, False]),
        np.arange(6.0).reshape(2, 3).T, np.arange(10**6),
    ]  # fmt: skip
    sender = threading.Thread(target=lambda: [ours.send(AdapterPair("", array, array)) for array in sent])
    sender.start()
    found = [theirs.receive() for _ in sent]
    sender.join()
    for message, array in zip(found, sent, strict=True):
        assert message.lora_b.dtype == array.dtype
        assert np.array_equal(message.lora_a, array)
        assert np.array_equal(message.lora_b, array)
    found[2].lora_b[0] = False  # it is writable
    assert found[2].lora_a[0]


def test_several_threads_may_send(wires):
    ours, theirs = wires
    pairs = [AdapterPair(str(n), np.full(1000, n), np.full(10, n)) for n in range(20)]
    threads = [threading.Thread(target=ours.send, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in threads:
        message = theirs.receive()
        assert {*message.lora_a, *message.lora_b} == {int(message.tensor)}
        seen.add(message.tensor)
    assert seen == {pair.tensor for pair in pairs}
    for thread in threads:
        thread.join()


def test_the_end_of_a_connection_is_reported(wires):
    ours, theirs = wires
    ended = threading.Thread(target=theirs.wait_closed)
    ended.start()
    ours.close()
    with pytest.raises(ConnectionClosed):
        theirs.receive()
    ended.join()


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x05\0\0\0\0\0\0\0hello"])
def test_invalid_messages(wires, data):
    ours, theirs = wires
    ours.socket.sendall(data)
    with pytest.raises(ValueError, match="not a message of this protocol"):
        theirs.receive()


def test_plans_are_received_unchanged(wires):
    ours, theirs = wires
    merged = SoftEmbeddingRows(np.arange(2), np.ones((2, 3), np.int64), np.ones((2, 3)), np.ones((2, 3)))
    fields = (
        "rows", "tokens", "state", "sampled", "numbers", "req_slot", "start", "size",
    )  # fmt: skip
    one = np.arange(1)
    groups = (
        AlgorithmBatch(get_algorithm("edit"), one, np.ones((1, 4)), 3),
        AlgorithmBatch(get_algorithm("credit"), one, np.ones((1, 5)), 1, np.ones(2)),
    )
    blocks = DenoiseBlocks(
        **{name: np.arange(6).reshape(2, 3) + n for n, name in enumerate(fields)},
        sampling_params=np.ones((2, 4)), draws=np.zeros((2, 3), dtype=np.int64),
        groups=groups,
        logits_processors=LogitsProcessorBatch(*(np.arange(2) + n for n in range(9))),
        num_logprobs=np.arange(2), forced_tokens=(ForcedTokens(0, 1, (2,)),), per_request=(),
    )  # fmt: skip
    write = StateWrite(2, 5, np.arange(3), np.array([0, 1, 6], np.int8))
    few = np.arange(3, dtype=np.int32)
    plan = StepPlan(
        np.arange(24, dtype=np.int32).reshape(2, 12), None, few[None], 3, soft_embeddings=merged, writes=(write,),
        page_writes=PageWrites(few, few + 1, few + 2),
    )  # fmt: skip
    ours.send(Step(encode_forward(plan)))
    ours.send(Sample(encode_blocks(blocks)))
    found = decode_forward(theirs.receive().plan)
    found_blocks = decode_blocks(theirs.receive().blocks, get_algorithm)
    assert_equal(found, plan)
    assert found_blocks.groups[1].algorithm is get_algorithm("credit")
    sent = replace(blocks, tokens=None)  # without what only rank 0 uses
    assert_equal(found_blocks, sent)
    assert decode_blocks(encode_blocks(None), get_algorithm) is None


def assert_equal(found, expected):
    """Compares dataclasses with arrays."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    elif is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_equal(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple):
        for pair in zip(found, expected, strict=True):
            assert_equal(*pair)
    else:
        assert found == expected


def test_hello_messages(wires):
    ours, theirs = wires
    ours.send(Hello(1, "host", 3, 4))
    assert theirs.receive() == Hello(1, "host", 3, 4)
