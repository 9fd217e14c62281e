"""Tests of the choice of a replica for each request."""

import random

import pytest

from runtime.config import EngineConfig
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.client import PREFIX_CHUNK, Router
from runtime.server.engine_client.ipc_protocol import Configure
from tests.server.fake_engine import FakeEngine


@pytest.fixture
def info():
    configure = Configure(EngineConfig(), (0,), "info", "text")
    return FakeEngine(configure, lambda *outputs: None, None).info


def spec(prompt, max_tokens=64, salt=""):
    return RequestSpec(id="x", prompt=prompt, max_tokens=max_tokens, cache_salt=salt)


def send(router, request, load, info, ready=None):
    replica, work = router.assign(request, ready or range(len(load)), load, info)
    router.work[replica] += work
    load[replica] += 1
    return replica


def test_the_replica_with_the_least_work_in_tokens_is_chosen(info):
    draw = random.Random(1)
    router, load = Router(3), [0, 0, 0]
    for _ in range(300):
        before = list(router.work)
        prompt = [draw.randrange(10**6) for _ in range(draw.choice([3, 500, 2000]))]
        assert before[send(router, spec(prompt), load, info)] == min(before)
    assert max(router.work) - min(router.work) < 2500  # the work of one request


def test_a_long_prompt_weighs_more_than_many_short_ones(info):
    router, load = Router(2), [0, 0]
    assert send(router, spec(list(range(2000))), load, info) == 0
    assert [send(router, spec([n]), load, info) for n in range(10)] == [1] * 10


def test_a_cached_prefix_attracts_requests_while_it_saves_more_than_they_wait(info):
    router, load = Router(2), [0, 0]
    shared = list(range(1000))
    assert send(router, spec(shared), load, info) == 0
    router.work[0] = 0  # its request has ended
    assert [send(router, spec([*shared, n]), load, info) for n in range(3)] == [0] * 3
    router.work[0] += 5000
    assert send(router, spec([*shared, 7]), load, info) == 1
    assert send(router, spec([*shared, 8]), load, info) == 1  # replica 1 has the prefix too by now
    router.work[0] = router.work[1] = 0
    router.forget_replica(1)
    assert router._cached_tokens(1, router._prefix_hashes(spec([*shared, 9]))) == 0
    assert send(router, spec([*shared, 9]), load, info) == 0


def test_prefixes_with_different_salts_differ(info):
    router, load = Router(2), [0, 0]
    shared = list(range(1000))
    send(router, spec(shared, salt="a"), load, info)
    complete = len(shared) // PREFIX_CHUNK * PREFIX_CHUNK
    assert router._cached_tokens(0, router._prefix_hashes(spec(shared, salt="a"))) == complete
    assert router._cached_tokens(0, router._prefix_hashes(spec(list(shared), salt="b"))) == 0


def test_no_more_prefixes_are_remembered_than_a_cache_holds(info):
    router, load = Router(2), [0, 0]
    capacity = info.num_pages * info.page_size // PREFIX_CHUNK
    for n in range(2 * capacity // 50):
        send(router, spec([n, *range(50 * PREFIX_CHUNK)]), load, info)
    assert all(len(held) <= capacity for held in router._cached_prefixes)


def test_the_mean_output_length_follows_finished_outputs(info):
    router, load = Router(2), [0, 0]
    for _ in range(200):
        router.record_output_len(20)
    _, work = router.assign(spec([1, 2], max_tokens=4000), [0, 1], load, info)
    assert 20 <= work <= 25
    _, work = router.assign(spec([1, 2], max_tokens=5), [0, 1], load, info)
    assert work == 7


def test_replicas_that_are_down_get_nothing(info):
    router, load = Router(3), [0, 0, 0]
    assert {send(router, spec([n]), load, info, ready=[1, 2]) for n in range(20)} == {1, 2}
