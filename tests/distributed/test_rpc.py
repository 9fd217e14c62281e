"""Messages with arrays, over a socket."""

import socket
import threading

import numpy as np
import pytest

from runtime.algorithms.base import get_algorithm
from runtime.distributed.rpc import ConnectionClosed, Heartbeat, Hello, RpcConnection, Sample, Step
from runtime.distributed.serialization import LAYOUT, batch_layout, block_arrays, block_plan, step_arrays, step_plan
from runtime.engine.step_plan import (
    AlgorithmBatch,
    BatchLayout,
    DenoiseBlocks,
    SamplingInputs,
    SoftEmbeddingRows,
    StepPlan,
)


@pytest.fixture
def wires():
    ours, theirs = map(RpcConnection, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_arrays_come_as_they_went(wires):
    ours, theirs = wires
    sent = {
        "empty": np.zeros((0, 3), np.int32), "bytes": np.array([[1, -2]], np.int8), "bits": np.array([True, False]),
        "turned": np.arange(6.0).reshape(2, 3).T, "large": np.arange(10**6),
    }  # fmt: skip
    sender = threading.Thread(target=ours.send, args=(Step(True), sent))
    sender.start()
    message, found = theirs.receive()
    sender.join()
    assert message == Step(True)
    assert list(found) == list(sent)
    for name, array in sent.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    found["bits"][0] = False  # and may be written to


def test_several_threads_may_send(wires):
    ours, theirs = wires
    threads = [threading.Thread(target=ours.send, args=(Heartbeat(n), {"n": np.full(1000, n)})) for n in range(20)]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in threads:
        message, arrays = theirs.receive()
        assert set(arrays["n"]) == {message.steps}
        seen.add(message.steps)
    assert seen == set(range(20))


def test_the_end_of_a_connection_is_reported(wires):
    ours, theirs = wires
    ended = threading.Thread(target=theirs.wait_closed)
    ended.start()
    ours.close()
    with pytest.raises(ConnectionClosed):
        theirs.receive()
    ended.join()


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x05\0\0\0\0\0\0\0hello"])
def test_what_is_no_message(wires, data):
    ours, theirs = wires
    ours.socket.sendall(data)
    with pytest.raises(ValueError, match="not a message of this protocol"):
        theirs.receive()


def test_plans_come_as_they_went(wires):
    ours, theirs = wires
    numbers = {name: np.arange(4) + n for n, name in enumerate(LAYOUT)}
    merged = SoftEmbeddingRows(np.arange(2), np.ones((2, 3), np.int64), np.ones((2, 3)), np.ones((2, 3)))
    fields = (
        "rows", "tokens", "state", "sampled", "may_force", "num_steps_forcing", "initial_masks", "step_budget",
        "post_edit_steps",
    )  # fmt: skip
    one = np.arange(1)
    groups = (
        AlgorithmBatch(get_algorithm("edit"), one, np.ones((1, 4)), 3),
        AlgorithmBatch(get_algorithm("credit"), one, np.ones((1, 5)), 1, np.ones(2)),
    )
    blocks = DenoiseBlocks(
        **{name: np.arange(6).reshape(2, 3) + n for n, name in enumerate(fields)}, remasked=None,
        sampling=SamplingInputs(np.ones((2, 4)), np.zeros((2, 3))),
        groups=groups,
        req_slot=np.arange(2),
    )  # fmt: skip
    plan = StepPlan(np.arange(9), BatchLayout(**numbers, lora_slots=one), soft_embeddings=merged)
    ours.send(Step(), step_arrays(plan, same=False))
    ours.send(*block_arrays(blocks))
    _, arrays = theirs.receive()
    sample, sampled = theirs.receive()
    assert isinstance(sample, Sample)
    found, found_blocks = step_plan(arrays, batch_layout(arrays, 3)), block_plan(sample, sampled, get_algorithm)
    same(found, plan, ("tokens",))
    same(found.layout, plan.layout, (*LAYOUT, "lora_slots"))
    assert found.layout.active_lora_modules == 3
    same(found.soft_embeddings, merged, ("rows", "ids", "probs", "params"))
    same(found_blocks, blocks, (*fields, "req_slot"))
    same(found_blocks.sampling, blocks.sampling, ("limits", "uniform"))
    assert (found_blocks.remasked, found_blocks.noise_uniforms) == (None, None)
    assert [(g.algorithm.key, g.required_stats) for g in found_blocks.groups] == [("edit", 3), ("credit", 1)]
    same(found_blocks.groups[1], blocks.groups[1], ("members", "params", "history"))
    assert block_plan(*block_arrays(None), get_algorithm) is None
    assert list(step_arrays(plan, same=True))[:1] == ["tokens"]
    assert not {"slots", "lora_slots"} & step_arrays(plan, same=True).keys()


def same(found, expected, names):
    for name in names:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_a_hello_says_who_it_is(wires):
    ours, theirs = wires
    ours.send(Hello(1, 2, "host", 3, 4))
    assert theirs.receive() == (Hello(1, 2, "host", 3, 4), {})
