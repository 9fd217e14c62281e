"""The table of live requests: admits them, sends them to a backend, hands each its news."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.server.adapters import Adapters
from runtime.server.frontend import Frontend, Inbox, News, Unavailable, end
from runtime.server.messages import Abort, AdapterNews, Add, ProfileNews
from runtime.server.metrics import Metrics
from runtime.server.observed import Observed
from runtime.server.profiling import Profiler
from runtime.server.routing import Router

if TYPE_CHECKING:
    from runtime.server.supervisor import Supervisor


Soon = Callable[[Callable[[], None]], object]


class Live:
    """One engine request at a backend."""

    __slots__ = ("adapter", "id", "inbox", "index", "owner", "replica", "tokens", "work")

    def __init__(self, spec: RequestSpec, index: int, inbox: News, replica: int, work: int) -> None:
        self.id = spec.id
        self.owner = spec.tenant
        self.adapter = spec.adapter
        self.index = index  # which choice of the HTTP request
        self.inbox = inbox
        self.replica = replica
        self.work = work  # tokens that its replica has still to do for it, as far as one can tell
        self.tokens = 0  # of its answer so far


class Table(Frontend):
    """Every live request of this server, and what is known of its engines.

    `supervisor` is set once it exists. `soon`: puts work off to the loop's next turn.
    """

    adapters: Adapters
    profiler: Profiler

    def __init__(self, config: ServerConfig, observed: Observed, metrics: Metrics, soon: Soon | None = None) -> None:
        super().__init__(config, observed, Adapters(config), Profiler(config))
        self.metrics = metrics
        self.supervisor: Supervisor | None = None
        self.changed: Callable[[], None] = lambda: None  # is told that an engine has come or gone
        self.table: dict[str, Live] = {}
        self.soon = soon or (lambda work: asyncio.get_running_loop().call_soon(work))
        self.due: dict[int, list[RequestSpec]] = {}  # submitted in this turn of the loop, by the replica
        self.load = [0] * config.data_parallel_size  # live requests of each replica
        self.router = Router(config.data_parallel_size)
        self.owned: Counter[str] = Counter()  # live requests of each owner (key)
        self.adapted: Counter[str] = Counter()  # live requests of each adapter
        metrics.figures.live = self.load
        metrics.figures.work = self.router.work
        metrics.figures.adapted, metrics.figures.adapters = self.adapted, self.adapters.table

    @property
    def ready(self) -> list[int]:
        return [] if self.supervisor is None else self.supervisor.ready

    @property
    def complete(self) -> bool:
        return True

    @property
    def live(self) -> int:
        return len(self.table)

    def held(self, owner: str) -> int:
        return self.owned[owner]

    def progress(self) -> tuple[str, int, int]:
        assert self.supervisor is not None
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    async def metrics_text(self) -> bytes:
        return self.metrics.text()

    # -- requests

    def submit(self, specs: list[RequestSpec]) -> Inbox:
        inbox = Inbox()
        self.enter(specs, inbox)
        return inbox

    def enter(self, specs: list[RequestSpec], inbox: News) -> None:
        """`submit` with an inbox that is there."""
        if not specs:
            return
        self.check_room(len(specs), specs[0].tenant)
        ready, info = self.ready, self.require()
        shares: dict[int, list[RequestSpec]] = {}
        for index, spec in enumerate(specs):
            replica, work = self.router.place(spec, ready, self.load, info)
            self.table[spec.id] = Live(spec, index, inbox, replica, work)
            self.load[replica] += 1
            self.router.work[replica] += work
            self.owned[spec.tenant] += 1
            self.adapted[spec.adapter] += 1
            shares.setdefault(replica, []).append(spec)
        first = not self.due
        for replica, share in shares.items():
            self.due.setdefault(replica, []).extend(share)
        if first:
            self.soon(self.send_due)

    def send_due(self) -> None:
        """What one turn of the loop submits goes to each backend as one message."""
        due, self.due = self.due, {}
        for replica, specs in due.items():
            assert self.supervisor is not None
            self.supervisor.send(replica, Add.of(specs))

    def abort(self, ids: list[str]) -> None:
        self.send_due()  # no request comes after the word that it is not wanted
        shares: dict[int, list[str]] = {}
        for request_id in ids:
            live = self._remove(request_id)
            if live is not None:
                shares.setdefault(live.replica, []).append(request_id)
        for replica, share in shares.items():
            assert self.supervisor is not None
            self.supervisor.send(replica, Abort(share))

    def fail_all(self, error: RequestError) -> int:
        inboxes = [live.inbox for live in self.table.values()]
        self.abort(list(self.table))
        return end(inboxes, error)

    def _remove(self, request_id: str) -> Live | None:
        live = self.table.pop(request_id, None)
        if live is not None:
            self.load[live.replica] -= 1
            self.router.work[live.replica] -= live.work
            self.adapted[live.adapter] -= 1
            self.owned[live.owner] -= 1
            if not self.owned[live.owner]:
                del self.owned[live.owner]
        return live

    # -- what the supervisor tells

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.info = info
        self.metrics.loaded(info, load_seconds)
        self.adapters.on_ready(replica)
        self.changed()

    def on_news(self, replica: int, news: AdapterNews | ProfileNews) -> None:
        if isinstance(news, ProfileNews):
            self.profiler.on_news(replica, news)
        else:
            self.adapters.on_news(replica, news)

    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None:
        table = self.table
        for output in outputs:
            live = table.get(output.id)
            if live is None:  # aborted a moment ago
                continue
            done = len(output.new_tokens)
            live.tokens += done
            if output.finish_reason is not None:
                self._remove(output.id)
                self.router.answered(live.tokens)
            elif done:
                done = min(done, live.work - 1)
                live.work -= done
                self.router.work[live.replica] -= done
            live.inbox.put((live.index, output))

    def on_stats(self, replica: int, stats: EngineStats) -> None:
        self.metrics.engine(replica, stats)

    def on_down(self, replica: int, reason: str) -> None:
        self.metrics.engine_gone(replica)
        self.router.lost(replica)
        self.due.pop(replica, None)
        self.adapters.on_down(replica)
        self.profiler.on_down(replica)
        lost = [live for live in self.table.values() if live.replica == replica]
        for live in lost:
            self._remove(live.id)
        gone = Unavailable(f"the backend that served this request is gone ({reason}); send it again")
        end((live.inbox for live in lost), gone)
        self.changed()
