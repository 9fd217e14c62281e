"""Tests of the adapters' slots on the device: the least recently used adapter without running requests is evicted."""

from types import SimpleNamespace

import pytest

from runtime.errors import ConfigError, RequestError
from runtime.scheduling.lora_manager import MAX_PASSING, LoRAManager
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


def request(index, adapter, tenant="", group=None, finished=False):
    spec = SimpleNamespace(tenant=tenant, parent_id=str(index) if group is None else group, adapter=adapter)
    return SimpleNamespace(arrival_index=index, spec=spec, finished=finished)


def waiting(*names):
    queue = FairQueue()
    for index, name in enumerate(names):
        queue.add(request(index, name))
    return queue


def test_requests_that_need_no_slot_pass_one_that_waits_for_it(adapters):
    assert adapters.next_request(waiting()) is None
    assert adapters.next_request(waiting("c", "")).spec.adapter == "c"
    adapters.acquire("a")
    adapters.acquire("b")
    assert adapters.next_request(waiting("c", "x", "", "a")).arrival_index == 2
    assert adapters.next_request(waiting("c", "a")).arrival_index == 1
    assert adapters.next_request(waiting("a", "c")).arrival_index == 0
    assert adapters.next_request(waiting("c", "x")) is None


def test_the_number_of_passing_requests_of_adapters_is_limited(adapters):
    adapters.acquire("a")
    adapters.acquire("b")
    queue = waiting("c", *["a", ""] * 50, "c")
    for _ in range(2):  # the limit is that of each request that waits
        passed = []
        while (found := adapters.next_request(queue)) is not None:
            queue.admit(found)
            adapters.acquire(found.spec.adapter)
            passed.append(found.spec.adapter)
        assert (passed.count("a"), passed.count("")) == (MAX_PASSING, 50)
        queue = waiting("x", *["a", ""] * 50)
        adapters.next_request(waiting("a"))  # the first request was admitted in the meantime


# Running requests, each as its adapter ("-": none), tenant and group, and those that a waiting request of the tenant t
# with the adapter "x" preempts.
PREEMPTED = {
    "the newest of a tenant with several": ("av1 bv2", [1]),
    "an adapter with fewer requests": ("av1 bv2 bv3 av4 bv5", [0, 3]),
    "nobody of a tenant with one": ("av1 bw2", []),
    "nobody if an adapter has a request of a tenant with one": ("aw1 av2 bu3 bv4", []),
    "nobody if the victims could preempt in return": ("av1 av2 bw3 -t4", []),
    "nobody if the tenants would then be equal": ("-v1 -v2 -v3 av4 av5 -t6 -t7 -t8 bw0", []),
    "a group of the same tenant with several": ("at1 bt1 bt1", [0]),
    "nobody of groups with one": ("at1 bt2", []),
    "nobody if its group runs already": ("av1 bv2 bv3 -t9", []),
}


@pytest.mark.parametrize(("running", "preempted"), PREEMPTED.values(), ids=PREEMPTED)
def test_a_waiting_tenant_preempts_for_a_slot_as_for_a_place(adapters, running, preempted):
    queue, requests = FairQueue(), []
    for index, (name, tenant, group) in enumerate(running.split()):
        requests.append(request(index, name.strip("-"), tenant, group))
        queue.add(requests[-1])
        queue.admit(requests[-1])
        adapters.acquire(requests[-1].spec.adapter)
    new = request(9, "x", "t", "9")
    queue.add(new)
    assert [victim.arrival_index for victim in adapters.slot_victims(new, requests, queue)] == preempted
    assert adapters.slot_victims(request(9, "a", "t"), requests, queue) == []  # it has a slot
    for each in requests:
        each.finished = True  # it leaves after this step
    assert adapters.slot_victims(new, requests, queue) == []


def test_slots_are_taken_from_the_tenant_with_the_most():
    many = LoRAManager(3, Matrices())
    for name in "abcx":
        many.load(name, adapter())
    queue, requests = FairQueue(), []
    for index, (name, tenant) in enumerate([("a", "w"), ("b", "v"), ("c", "v"), ("", "w"), ("", "w")]):
        requests.append(request(index, name, tenant))
        queue.add(requests[-1])
        queue.admit(requests[-1])
        many.acquire(name)
    new = request(9, "x", "t")
    queue.add(new)
    assert many.slot_victims(new, requests, queue) == [requests[2]]
