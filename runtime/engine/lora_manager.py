"""Adapters that requests name: which there are, and which of them the device's slots hold, least recently used first
out. Knows no tensor."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from runtime.config.adapters import check_adapter_name
from runtime.engine.request import Request
from runtime.engine.request_queue import FairQueue
from runtime.errors import ConfigError, RequestError

if TYPE_CHECKING:  # its module reads tensors
    from runtime.lora.adapter_checkpoint import Adapter

WITHOUT = "this engine was started without room for adapters; start it with --max-loras"
PASSED = 64  # requests that are looked at for one of the base model, while the first in line waits for a slot


class Matrices(Protocol):
    """What puts an adapter's matrices where the model finds them (``runtime.lora.adapter_weights``)."""

    def read(self, uri: str) -> Adapter: ...
    def add(self, name: str, adapter: Adapter) -> None: ...
    def drop(self, name: str) -> None: ...
    def put(self, slot: int, name: str) -> None: ...
    def touches(self, name: str) -> int: ...


class Adapters:
    """Those of one engine. A request that runs holds its adapter, which then keeps its slot.

    Args:
        slots: of the device. matrices: None where there are no adapters. apart: bits of the weights that
            are computed in pieces when an adapter changes them; every: those of all others.
    """

    def __init__(self, slots: int = 0, matrices: Matrices | None = None, apart: int = 0, every: int = 0) -> None:
        self.slots = slots
        self.matrices = matrices
        self.apart = apart
        self.every = every
        self.digests: dict[str, str] = {}  # of each name
        self.leaving: set[str] = set()  # no new request may have them
        self.evictions = 0
        self._free = list(range(slots - 1, -1, -1))
        self._slots: OrderedDict[str, int] = OrderedDict()  # of those on the device; least recently used first
        self._held: Counter[str] = Counter()
        self._touches: dict[str, int] = {}
        self.any = 0  # all of these together

    def read(self, uri: str) -> Adapter:
        """See Matrices."""
        if self.matrices is None:
            raise ConfigError(WITHOUT)
        return self.matrices.read(uri)

    def load(self, name: str, adapter: Adapter) -> None:
        """From now on requests may name it. ConfigError, and nothing changes, where the name is another's."""
        check_adapter_name(name)
        if self.matrices is None:
            raise ConfigError(WITHOUT)
        if name in self.digests:
            if self.digests[name] != adapter.digest:
                raise ConfigError(
                    f"adapter {name!r} is loaded with other content; unload it first, or take another name"
                )
            self.leaving.discard(name)
            return
        self.matrices.add(name, adapter)
        self.digests[name] = adapter.digest
        self._touches[name] = self.matrices.touches(name)
        self._count_touches()

    def unload(self, name: str) -> None:
        """Forget it; nobody holds it any more. An unknown one is forgotten already."""
        self.leaving.discard(name)
        if name not in self.digests or self.matrices is None:
            return
        if self._held[name]:
            raise ValueError(f"adapter {name!r} is in use")
        del self.digests[name], self._touches[name]
        if name in self._slots:
            self._free.append(self._slots.pop(name))
        self.matrices.drop(name)
        self._count_touches()

    def offers(self, name: str) -> bool:
        """Whether a new request may have it."""
        return name in self.digests and name not in self.leaving

    def named(self, name: str | None, default: str = "") -> str:
        """What a caller asks for. RequestError 404, with what there is, for one that is not there."""
        if name and not self.offers(name):
            known = ", ".join(self.offered) or "none"
            raise RequestError(
                f"adapter: {name!r} is not loaded; there is {known}",
                param="adapter",
                status=404,
                code="model_not_found",
            )
        return name or default

    @property
    def offered(self) -> list[str]:
        return sorted(self.digests.keys() - self.leaving)

    def held(self, name: str) -> int:
        return self._held[name]

    def fits(self, name: str) -> bool:
        """Whether it has a slot, or could have one now. "": the base model, which takes none."""
        return not name or name in self._slots or bool(self._free) or self._idle() is not None

    def first(self, waiting: FairQueue) -> Request | None:
        """Who is admitted next, if anybody: the first in line. While its adapter finds no slot, those of the base model
        pass it, which take none."""
        if not waiting:
            return None
        first = waiting.first()
        if self.fits(first.adapter):
            return first
        return next((request for request in islice(waiting.line(), PASSED) if not request.adapter), None)

    def bring(self, name: str) -> int:
        """Have it on the device, as it fits; its slot, -1 of the base model."""
        if not name:
            return -1
        slot = self._slots.get(name)
        if slot is None:
            assert self.matrices is not None
            if not self._free:
                idle = self._idle()
                assert idle is not None
                self._free.append(self._slots.pop(idle))
                self.evictions += 1
            self.matrices.put(self._free[-1], name)
            slot = self._slots[name] = self._free.pop()
        self._slots.move_to_end(name)
        return slot

    def hold(self, name: str) -> int:
        """For a request that runs from now on; the slot."""
        slot = self.bring(name)
        if name:
            self._held[name] += 1
        return slot

    def let_go(self, name: str) -> None:
        """A request that held it does not run any more."""
        if name:
            self._held[name] -= 1

    def touched(self, names: Collection[str]) -> int:
        """What a step of these adapters' requests may change: all that any adapter does, so that there are few sorts of
        steps, but of the weights that are costly only what these do."""
        if not self._touches or not any(names):
            return 0
        bits = 0
        for name in names:
            bits |= self._touches.get(name, 0)
        return (self.any & ~self.apart) | (bits & self.apart)

    def wanted(self, waiting: FairQueue) -> dict[str, int]:
        """How many requests wait, of each adapter."""
        return dict(Counter(request.adapter for request in waiting if request.adapter)) if self.slots else {}

    def salt(self, name: str, salt: str) -> str:
        """Of cached prefixes, which only requests of the same adapter and the same tenant's `salt` share."""
        return f"{self.digests.get(name, '')}\0{salt}"

    def _idle(self) -> str | None:
        return next((name for name in self._slots if not self._held[name]), None)

    def _count_touches(self) -> None:
        self.any = 0
        for bits in self._touches.values():
            self.any |= bits
