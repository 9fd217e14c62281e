"""Tests of the adapters' slots on the device: the least recently used adapter without running requests is evicted."""

from types import SimpleNamespace

import pytest

from runtime.errors import ConfigError, RequestError
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.request_queue import FairQueue


class Matrices:
    """A backend that records the adapter of each slot. `put` fails for the adapter "x"."""

    def __init__(self):
        self.slots = {}
        self.names = set()

    def add(self, name, adapter):
        self.names.add(name)

    def drop(self, name):
        self.names.remove(name)

    def put(self, slot, name):
        if name == "x":
            raise MemoryError
        self.slots[slot] = name

    def touches(self, name):
        return {"a": 0b001, "b": 0b010, "c": 0b100}.get(name, 0b001)


def adapter(digest="d"):
    return SimpleNamespace(digest=digest)


@pytest.fixture
def adapters():
    made = LoRAManager(2, Matrices(), eager_modules=0b100)
    for name in "abcx":
        made.load(name, adapter())
    return made


def test_least_recently_used_goes_first(adapters):
    slots = {name: adapters.acquire(name) for name in "ab"}
    for name in "ab":
        adapters.release(name)
    adapters.acquire("a")
    assert adapters.acquire("c") == slots["b"]
    assert not adapters.can_activate("b")
    assert adapters.can_activate("a")
    assert adapters.can_activate("")
    adapters.release("a")
    assert adapters.can_activate("b")
    assert adapters.acquire("b") == slots["a"]
    assert adapters.backend.slots == {slots["a"]: "b", slots["b"]: "c"}
    assert adapters.evictions == 2


def test_an_adapter_that_cannot_be_put_takes_no_slot(adapters):
    for _ in range(3):
        with pytest.raises(MemoryError):
            adapters.activate("x")
    assert {adapters.acquire("a"), adapters.acquire("b")} == {0, 1}


def test_unloading(adapters):
    adapters.acquire("a")
    with pytest.raises(ValueError, match="in use"):
        adapters.unload("a")
    adapters.unloading.add("a")
    assert not adapters.is_available("a")
    adapters.release("a")
    adapters.unload("a")
    adapters.unload("a")
    assert adapters.available == ["b", "c", "x"]
    assert adapters.backend.names == {"b", "c", "x"}
    adapters.acquire("b")
    adapters.acquire("c")  # both fit, because unloading freed a slot
    assert adapters.evictions == 0


def test_affected_modules_of_a_step(adapters):
    assert adapters.affected_modules([""]) == 0
    assert adapters.affected_modules(["a", ""]) == 0b011  # of any adapter, but eager ones of these only
    assert adapters.affected_modules(["a", "c"]) == 0b111


def test_names(adapters):
    assert adapters.resolve(None) == ""
    assert adapters.resolve(None, "a") == "a"
    with pytest.raises(RequestError, match="'z' is not loaded; available: a, b, c, x"):
        adapters.resolve("z")
    adapters.load("a", adapter())
    with pytest.raises(ConfigError, match="loaded with other content"):
        adapters.load("a", adapter("other"))
    assert adapters.cache_salt("a", "s") != adapters.cache_salt("", "s") != adapters.cache_salt("", "t")
    assert adapters.cache_salt("a", "s") != adapters.cache_salt("", "d\0s")


def waiting(*names):
    queue = FairQueue()
    for seq, name in enumerate(names):
        queue.add(SimpleNamespace(arrival_index=seq, adapter=name, spec=SimpleNamespace(tenant="", parent_id=str(seq))))
    return queue


def test_requests_of_the_base_model_precede_one_that_waits_for_a_slot(adapters):
    assert adapters.next_request(waiting()) is None
    assert adapters.next_request(waiting("c", "")).adapter == "c"
    adapters.acquire("a")
    adapters.acquire("b")
    assert adapters.next_request(waiting("c", "a", "", "")).arrival_index == 2
    assert adapters.next_request(waiting("c", "a")) is None  # else the first request might wait forever
    assert adapters.next_request(waiting("a", "c")).arrival_index == 0
