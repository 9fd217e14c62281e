"""The table of live requests: admits them, sends them to a backend, hands each its news.

One HTTP request may stand for several engine requests (``n`` choices, a list of prompts). They share an ``Inbox``;
what happens to any of them wakes the handler once, however much came in the meantime.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.io import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.server.adapters import Adapters
from runtime.server.messages import Abort, AdapterNews, Add, ProfileNews
from runtime.server.metrics import Metrics
from runtime.server.profiling import Profiler
from runtime.server.routing import Router

if TYPE_CHECKING:
    from runtime.server.supervisor import Supervisor


Soon = Callable[[Callable[[], None]], object]


class Unavailable(RequestError):
    """No backend can serve the request now; it may be sent again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, code="no_backend")


class Inbox:
    """News for one HTTP request, in the order of arrival; one reader."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, EngineOutput] | RequestError] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: tuple[int, EngineOutput] | RequestError) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Return once something is there."""
        if not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None


class Live:
    """One engine request at a backend."""

    __slots__ = ("adapter", "id", "inbox", "index", "owner", "replica", "tokens", "work")

    def __init__(self, spec: RequestSpec, index: int, inbox: Inbox, replica: int, work: int) -> None:
        self.id = spec.id
        self.owner = spec.owner
        self.adapter = spec.adapter
        self.index = index  # which choice of the HTTP request
        self.inbox = inbox
        self.replica = replica
        self.work = work  # tokens that its replica has still to do for it, as far as one can tell
        self.tokens = 0  # of its answer so far


class Frontend:
    """Every live request of this server, and what is known of its engines. `soon`: puts work off to the loop's next
    turn."""

    def __init__(self, config: ServerConfig, metrics: Metrics, soon: Soon | None = None) -> None:
        self.config = config
        self.metrics = metrics
        self.adapters = Adapters(config)
        self.profiler = Profiler(config)
        self.supervisor: Supervisor | None = None  # set once both exist
        self.table: dict[str, Live] = {}
        self.soon = soon or (lambda work: asyncio.get_running_loop().call_soon(work))
        self.due: dict[int, list[RequestSpec]] = {}  # submitted in this turn of the loop, by the replica
        self.load = [0] * config.data_parallel_size  # live requests of each replica
        self.router = Router(config.data_parallel_size)
        self.held: Counter[str] = Counter()  # live requests of each owner (key)
        self.adapted: Counter[str] = Counter()  # live requests of each adapter
        metrics.figures.live = self.load
        metrics.figures.work = self.router.work
        metrics.figures.adapted, metrics.figures.adapters = self.adapted, self.adapters.table
        self.info: EngineInfo | None = None  # of the first engine that loaded; replicas are equal

    # -- requests

    @property
    def available(self) -> bool:
        """Whether a backend serves."""
        return self.supervisor is not None and bool(self.supervisor.ready)

    def progress(self) -> tuple[str, int, int]:
        """Phase, bytes done and bytes in all of the replica that is furthest with its loading."""
        assert self.supervisor is not None
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    def require(self) -> EngineInfo:
        """The engine's facts. Raises Unavailable when no backend serves."""
        if self.info is None:
            raise Unavailable("the model is still being loaded; /startup tells how far it is")
        if not self.available:
            raise Unavailable("no backend is running at the moment; it is being restarted")
        return self.info

    def check_count(self, prompts: int, n: int) -> None:
        """Raises RequestError 400 if one request may never have so many answers; Unavailable."""
        count, most = prompts * max(n, 1), self.most_answers()
        if count > most:
            param = "n" if prompts == 1 or n > most else "prompt"
            asked = f"{prompts} prompts are " if prompts > 1 else "these are "
            times = f", with n {n} for each" if prompts > 1 and n > 1 else ""
            raise RequestError(
                f"{param}: {asked}{count} answers{times}; one request may have {most} here, half of --max-num-reqs and "
                "--max-queue together; send several requests",
                param=param,
            )

    def most_answers(self) -> int:
        """Of one request: half of all places."""
        places = self.require().max_num_reqs * self.config.data_parallel_size + self.config.max_queue
        return max(1, places // 2)

    def check_room(self, count: int, owner: str = "") -> None:
        """Raises RequestError 429 unless `count` more requests fit now; Unavailable.

        Nobody holds more of the room than is then left to the others, but for a single request: with an `owner` all
        that is its own counts, without one this HTTP request alone.
        """
        info = self.require()
        assert self.supervisor is not None
        queue = self.config.max_queue
        left = info.max_num_reqs * len(self.supervisor.ready) + queue - len(self.table)
        held = self.held[owner] if owner else 0
        if count > left or (held + count > 1 and held + count > left - count):
            whose = f", {held} of them of this key" if owner else ""
            raise RequestError(
                f"the queue is full: {len(self.table)} requests are live{whose}, which leaves {max(left, 0)} places, "
                f"too few for {count} more beside those of others (--max-queue {queue}); retry later",
                status=429,
                code="queue_full",
            )

    def submit(self, specs: list[RequestSpec]) -> Inbox:
        """Send requests on their way; news of ``specs[i]`` arrives in the inbox as ``(i, output)``.

        Raises RequestError: 429 when the queue is full, 503 when no backend serves.
        """
        if not specs:
            return Inbox()
        self.check_room(len(specs), specs[0].owner)
        assert self.supervisor is not None
        ready, info = self.supervisor.ready, self.require()
        inbox = Inbox()
        shares: dict[int, list[RequestSpec]] = {}
        for index, spec in enumerate(specs):
            replica, work = self.router.place(spec, ready, self.load, info)
            self.table[spec.id] = Live(spec, index, inbox, replica, work)
            self.load[replica] += 1
            self.router.work[replica] += work
            self.held[spec.owner] += 1
            self.adapted[spec.adapter] += 1
            shares.setdefault(replica, []).append(spec)
        first = not self.due
        for replica, share in shares.items():
            self.due.setdefault(replica, []).extend(share)
        if first:
            self.soon(self.send_due)
        return inbox

    def send_due(self) -> None:
        """What one turn of the loop submits goes to each backend as one message."""
        due, self.due = self.due, {}
        for replica, specs in due.items():
            assert self.supervisor is not None
            self.supervisor.send(replica, Add.of(specs))

    def abort(self, ids: list[str]) -> None:
        """Forget requests and have their pages freed; ids that have ended already are fine."""
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
        """End every live request with `error`; how many there were."""
        inboxes = {id(live.inbox): live.inbox for live in self.table.values()}
        self.abort(list(self.table))
        for inbox in inboxes.values():
            inbox.put(error)
        return len(inboxes)

    def _remove(self, request_id: str) -> Live | None:
        live = self.table.pop(request_id, None)
        if live is not None:
            self.load[live.replica] -= 1
            self.router.work[live.replica] -= live.work
            self.adapted[live.adapter] -= 1
            self.held[live.owner] -= 1
            if not self.held[live.owner]:
                del self.held[live.owner]
        return live

    # -- what the supervisor tells

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.info = info
        self.metrics.loaded(info, load_seconds)
        self.adapters.on_ready(replica)

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
        for inbox in {id(live.inbox): live.inbox for live in lost}.values():
            inbox.put(Unavailable(f"the backend that served this request is gone ({reason}); send it again"))
