"""Manages LoRA adapters: those of the configuration, which are loaded, and which are in a slot on the device (LRU)."""

from __future__ import annotations

import functools
import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch

from runtime.config import EngineConfig
from runtime.config.adapter_names import DEFAULT_MAX_LORAS, check_adapter_name
from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, LoRAMerge, read_adapter, resolve_adapter
from runtime.lora.adapter_weights import LoRAWeights
from runtime.models.base import Model, ModelFamily
from runtime.request.validation import refuse
from runtime.scheduling.request import Request
from runtime.scheduling.request_queue import FairQueue
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.loader import WeightTransform

LORA_DISABLED = "LoRA is disabled; start the server with --max-loras"
MIN_DEFAULT_RANK = 16
LOOKAHEAD = 64  # requests searched for one that needs no slot while the first one waits for a slot
MAX_PASSING = 32  # requests of adapters in slots that may pass the first one


class LoRABackend(Protocol):
    """Stores the weights of adapters (``runtime.lora.adapter_weights``)."""

    def read(self, uri: str, reserve: Callable[[int], None], *, only_digest: bool) -> Adapter: ...
    def add(self, name: str, adapter: Adapter) -> None: ...
    def drop(self, name: str) -> None: ...
    def put(self, slot: int, name: str) -> None: ...
    def touches(self, name: str) -> int: ...
    def host_bytes(self, name: str) -> int: ...


class LoRAManager:
    """Manages the adapters of an engine. It does not access tensors. A running request keeps its adapter in its slot.

    Args:
        slots: number of device slots.
        backend: None without LoRA.
        eager_modules: mask of the modules that need the unfused path under LoRA.
        graph_modules: mask of all other modules.

    Attributes:
        all_modules: mask of the modules that any loaded adapter changes.
        digests: digest of each loaded adapter.
        unloading: adapters that new requests may not use.
    """

    def __init__(
        self, slots: int = 0, backend: LoRABackend | None = None, eager_modules: int = 0, graph_modules: int = 0
    ) -> None:
        self.slots = slots
        self.backend = backend
        self.eager_modules = eager_modules
        self.graph_modules = graph_modules
        self.digests: dict[str, str] = {}
        self.unloading: set[str] = set()
        self.evictions = 0
        self._free = list(range(slots - 1, -1, -1))
        self._slots: OrderedDict[str, int] = OrderedDict()  # active adapters, least recently used first
        self._num_running: Counter[str] = Counter()
        self._modules: dict[str, int] = {}
        self._passed_request: int | None = None  # arrival index of the first request while it waits for a slot
        self._num_passing = 0  # requests of adapters that were admitted in the meantime

    def read(
        self, uri: str, reserve: Callable[[int], None] = lambda num_bytes: None, *, only_digest: bool = False
    ) -> Adapter:
        """Reads an adapter checkpoint. Arguments: see `read_adapter`. Raises ConfigError without LoRA."""
        if self.backend is None:
            raise ConfigError(LORA_DISABLED)
        return self.backend.read(uri, reserve, only_digest=only_digest)

    def load(self, name: str, adapter: Adapter) -> None:
        """Makes an adapter available to requests. If its name is loaded, only its digest is used.

        Raises:
            ConfigError: the name is invalid or in use for another adapter, or LoRA is disabled. Nothing changes then.
        """
        check_adapter_name(name)
        if self.backend is None:
            raise ConfigError(LORA_DISABLED)
        if name in self.digests:
            if self.digests[name] != adapter.digest:
                raise ConfigError(
                    f"adapter {name!r} is loaded with other content; unload it first, or use another name"
                )
            self.unloading.discard(name)
            return
        self.backend.add(name, adapter)
        self.digests[name] = adapter.digest
        self._modules[name] = self.backend.touches(name)

    def unload(self, name: str) -> None:
        """Removes an adapter that no request uses. Ignores unknown names."""
        self.unloading.discard(name)
        if name not in self.digests or self.backend is None:
            return
        if self._num_running[name]:
            raise ValueError(f"adapter {name!r} is in use")
        del self.digests[name], self._modules[name]
        if name in self._slots:
            self._free.append(self._slots.pop(name))
        self.backend.drop(name)

    def host_bytes(self, names: Collection[str]) -> int:
        """Returns the host memory that would be free without these adapters. Names of equal content share it."""
        if self.backend is None:
            return 0
        kept = {digest for name, digest in self.digests.items() if name not in names}
        name_of = {self.digests[name]: name for name in names if name in self.digests}
        return sum(self.backend.host_bytes(name) for digest, name in name_of.items() if digest not in kept)

    def is_available(self, name: str) -> bool:
        """Whether new requests may use the adapter."""
        return name in self.digests and name not in self.unloading

    def resolve(self, name: str | None, default: str = "") -> str:
        """Returns the adapter that a caller selects. Raises RequestError 404 if it is not available."""
        if name and not self.is_available(name):
            why = f"{name!r} is not loaded; available: {', '.join(self.available) or 'none'}"
            raise refuse("adapter", why, status=404, code="model_not_found")
        return name or default

    @property
    def available(self) -> list[str]:
        return sorted(self.digests.keys() - self.unloading)

    def num_running(self, name: str) -> int:
        return self._num_running[name]

    def is_active(self, name: str) -> bool:
        """Whether the adapter is in a slot. The base model ("") needs none."""
        return not name or name in self._slots

    def can_activate(self, name: str) -> bool:
        """Whether the adapter is in a slot or could be now. The base model ("") needs none."""
        return self.is_active(name) or bool(self._free) or self._find_evictable() is not None

    def next_request(self, waiting: FairQueue) -> Request | None:
        """Returns the next request to admit; None if there is none.

        While the adapter of the first request has no slot, requests of the base model pass it, and up to `MAX_PASSING`
        requests of adapters that have one. More of them would keep all slots in use forever.
        """
        if not waiting:
            return None
        first = waiting.first()
        if self.can_activate(first.spec.adapter):
            self._passed_request = None
            return first
        if self._passed_request != first.arrival_index:
            self._passed_request, self._num_passing = first.arrival_index, 0
        may_pass = self._num_passing < MAX_PASSING
        heads = islice(waiting.heads(), LOOKAHEAD)
        return next((r for r in heads if not r.spec.adapter or (may_pass and self.can_activate(r.spec.adapter))), None)

    def slot_victims(self, request: Request, running: Sequence[Request], waiting: FairQueue) -> list[Request]:
        """Returns the running requests to preempt so that a waiting one gets a slot for its adapter.

        They are all requests of one adapter, and each of them may be preempted as for a place among the running
        requests (``FairQueue.may_preempt``). Of several adapters it is one of the tenant with the most slots, there the
        one with the fewest requests, and then the newest.

        Args:
            request: The first waiting request.
            running: The running requests in the order of their arrival.
            waiting: The queue, with the numbers of running requests.

        Returns:
            The requests; none if `request` has to wait, or needs no slot.
        """
        if self.can_activate(request.spec.adapter):
            return []
        by_adapter: dict[str, list[Request]] = {}
        for each in running:
            if each.spec.adapter:
                by_adapter.setdefault(each.spec.adapter, []).append(each)
        slots = Counter(tenant for users in by_adapter.values() for tenant in {user.spec.tenant for user in users})
        candidates = [users for users in by_adapter.values() if _may_preempt_all(request, users, waiting)]
        return max(
            candidates,
            key=lambda users: (max(slots[user.spec.tenant] for user in users), -len(users), users[-1].arrival_index),
            default=[],
        )

    def activate(self, name: str) -> int:
        """Loads the adapter into a slot if necessary; `can_activate` must hold. Returns the slot, -1 for the base
        model.
        """
        if not name:
            return -1
        slot = self._slots.get(name)
        if slot is None:
            assert self.backend is not None
            if not self._free:
                idle = self._find_evictable()
                assert idle is not None
                self._free.append(self._slots.pop(idle))
                self.evictions += 1
            self.backend.put(self._free[-1], name)
            slot = self._slots[name] = self._free.pop()
        self._slots.move_to_end(name)
        return slot

    def acquire(self, name: str) -> int:
        """Activates the adapter for a request that starts to run, and returns its slot."""
        slot = self.activate(name)
        if name:
            self._num_running[name] += 1
            self._num_passing += 1
        return slot

    def release(self, name: str) -> None:
        """Releases the adapter of a request that stops running."""
        if name:
            self._num_running[name] -= 1

    def affected_modules(self, names: Collection[str]) -> int:
        """Returns a bitmask of the modules with LoRA in a batch with these adapters.

        Cheap modules are always included so that there are few CUDA graph variants. Expensive ones are included only if
        one of these adapters changes them.
        """
        if not self._modules or not any(names):
            return 0
        bits = functools.reduce(operator.or_, (self._modules.get(name, 0) for name in names))
        return (self.all_modules & ~self.eager_modules) | (bits & self.eager_modules)

    def num_waiting(self, waiting: FairQueue) -> dict[str, int]:
        """Returns the number of waiting requests per adapter."""
        return dict(Counter(request.spec.adapter for request in waiting if request.spec.adapter)) if self.slots else {}

    def cache_salt(self, name: str, salt: str) -> str:
        """Returns the salt of the page group hashes: only requests with the same adapter and salt share pages."""
        return f"{self.digests.get(name, '')}\0{salt}"

    def _find_evictable(self) -> str | None:
        """Returns the least recently used active adapter without running requests."""
        return next((name for name in self._slots if not self._num_running[name]), None)

    @property
    def all_modules(self) -> int:
        return functools.reduce(operator.or_, self._modules.values(), 0)


def _may_preempt_all(request: Request, users: Sequence[Request], waiting: FairQueue) -> bool:
    """Returns whether `request` may preempt all users of an adapter, so that none may preempt it in return."""
    tenant_running, group_running = waiting.running_counts(request)
    tenants = Counter(user.spec.tenant for user in users)
    groups = Counter((user.spec.tenant, user.spec.parent_id) for user in users)

    def may(user: Request) -> bool:
        left_of_tenant, left_of_group = waiting.running_counts(user)
        left_of_tenant -= tenants[user.spec.tenant]
        left_of_group -= groups[user.spec.tenant, user.spec.parent_id]
        others = user.spec.tenant != request.spec.tenant
        enough = left_of_tenant > tenant_running if others else left_of_group >= 1
        return enough and not user.finished and waiting.may_preempt(request, user)

    return not group_running and all(map(may, users))


@dataclass(frozen=True)
class LoRASetup:
    """LoRA part of the configuration.

    Attributes:
        base: the base model of the adapters.
        weight_transform: merges an adapter into the weights while they are loaded.
        lora_config: slots and rank. None: adapters are not served.
        adapters: those to load at start.
    """

    base: BaseModelInfo | None = None
    weight_transform: WeightTransform | None = None
    lora_config: LoRAConfig | None = None
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    def load_adapters(self, model: Model, build: LayerFactory) -> LoRAManager:
        """Returns the LoRA manager of a built model. Raises ConfigError for an adapter that cannot be served with
        others.
        """
        if build.lora is None or self.base is None or self.lora_config is None:
            return LoRAManager()
        bank = LoRAWeights(self.base, model, build.lora, self.lora_config.max_lora_rank, build.device)
        max_loras = self.lora_config.max_loras
        adapters = LoRAManager(max_loras, bank, build.lora.eager_modules, build.lora.capturable_modules)
        for name, adapter in self.adapters.items():
            bank.check(adapter)
            adapters.load(name, adapter)
        for name in adapters.available[:max_loras]:
            adapters.activate(name)  # allocates its memory before the KV pool takes the rest
        return adapters


def make_lora_setup(
    config: EngineConfig, open_checkpoint: Callable[[], Checkpoint], family: ModelFamily[Any], arch: Any,
    dtype: torch.dtype, device: torch.device,
) -> LoRASetup:  # fmt: skip
    """Reads all adapters of the configuration.

    Args:
        open_checkpoint: returns the files of the base model. Few adapters need them (``lora.unchanged_weights``).

    Raises:
        ConfigError: an adapter is invalid.
    """
    if config.lora_path is None and not config.serves_adapters:
        return LoRASetup()
    base = BaseModelInfo.of(family, arch, dtype, open_checkpoint)
    change = None
    if config.pre_merge_lora and config.lora_path is not None:
        change = LoRAMerge.read(config.lora_path, base, device)
    if not config.serves_adapters:
        return LoRASetup(base, change)
    named = {
        name: read_adapter(resolve_adapter(uri), base, config.max_lora_rank) for name, uri in config.adapters.items()
    }
    slots = config.max_loras or (1 if config.use_lora and not config.pre_merge_lora else DEFAULT_MAX_LORAS)
    rank = config.max_lora_rank or max([MIN_DEFAULT_RANK, *(adapter.rank for adapter in named.values())])
    return LoRASetup(base, change, LoRAConfig(slots, rank), named)
