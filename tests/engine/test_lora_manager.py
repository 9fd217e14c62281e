"""Which adapters hold the device's slots: least recently used first out, none that somebody holds."""

from types import SimpleNamespace

import pytest

from runtime.engine.lora_manager import Adapters
from runtime.engine.request_queue import FairQueue
from runtime.errors import ConfigError, RequestError


class Matrices:
    """Remembers what was put where. Adapter "x" fails to be put."""

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
    made = Adapters(2, Matrices(), apart=0b100)
    for name in "abcx":
        made.load(name, adapter())
    return made


def test_least_recently_used_goes_first(adapters):
    slots = {name: adapters.hold(name) for name in "ab"}
    for name in "ab":
        adapters.let_go(name)
    adapters.hold("a")
    assert adapters.hold("c") == slots["b"]
    assert not adapters.fits("b")
    assert adapters.fits("a")
    assert adapters.fits("")
    adapters.let_go("a")
    assert adapters.fits("b")
    assert adapters.hold("b") == slots["a"]
    assert adapters.matrices.slots == {slots["a"]: "b", slots["b"]: "c"}
    assert adapters.evictions == 2


def test_one_that_cannot_be_put_takes_no_slot(adapters):
    for _ in range(3):
        with pytest.raises(MemoryError):
            adapters.bring("x")
    assert {adapters.hold("a"), adapters.hold("b")} == {0, 1}


def test_unloading(adapters):
    adapters.hold("a")
    with pytest.raises(ValueError, match="in use"):
        adapters.unload("a")
    adapters.leaving.add("a")
    assert not adapters.offers("a")
    adapters.let_go("a")
    adapters.unload("a")
    adapters.unload("a")
    assert adapters.offered == ["b", "c", "x"]
    assert adapters.matrices.names == {"b", "c", "x"}
    adapters.hold("b")
    adapters.hold("c")  # into its slot
    assert adapters.evictions == 0


def test_what_a_step_touches(adapters):
    assert adapters.touched([""]) == 0
    assert adapters.touched(["a", ""]) == 0b011  # what any does, but of the costly ones what these do
    assert adapters.touched(["a", "c"]) == 0b111


def test_names(adapters):
    assert adapters.named(None) == ""
    assert adapters.named(None, "a") == "a"
    with pytest.raises(RequestError, match="'z' is not loaded; there is a, b, c, x"):
        adapters.named("z")
    adapters.load("a", adapter())
    with pytest.raises(ConfigError, match="loaded with other content"):
        adapters.load("a", adapter("other"))
    assert adapters.salt("a", "s") != adapters.salt("", "s") != adapters.salt("", "t")
    assert adapters.salt("a", "s") != adapters.salt("", "d\0s")


def waiting(*names):
    queue = FairQueue()
    for seq, name in enumerate(names):
        queue.add(SimpleNamespace(arrival_index=seq, adapter=name, spec=SimpleNamespace(tenant="", parent_id=str(seq))))
    return queue


def test_the_base_passes_one_that_waits_for_a_slot(adapters):
    assert adapters.first(waiting()) is None
    assert adapters.first(waiting("c", "")).adapter == "c"
    adapters.hold("a")
    adapters.hold("b")
    assert adapters.first(waiting("c", "a", "", "")).arrival_index == 2
    assert adapters.first(waiting("c", "a")) is None  # or the first would wait for ever
    assert adapters.first(waiting("a", "c")).arrival_index == 0
