"""The completions of one HTTP request: converts engine outputs to text deltas and finished completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineOutput
from runtime.request.output import CompletionState, usage
from runtime.request.structured import FIELD
from runtime.server.engine_client.adapter_registry import no_longer_served
from runtime.server.engine_client.client import EngineClient
from runtime.server.serving.generation import Timings, Usage
from runtime.structured_output.grammar_cache import GrammarError

ABORT_SECONDS = 60.0  # maximum wait for the counts of aborted requests; a step may take that long on a CPU
MAX_BATCH = 128  # outputs of one HTTP request that are processed before the event loop serves other requests


@dataclass(slots=True)
class OutputDelta:
    """One engine output with the text that became final and the deltas of the parts of the message.

    Attributes:
        ended: this was the last output of the choice.
        length: characters of the output up to this delta; 0 without log-probabilities. The completion may be longer.
    """

    choice: CompletionState
    output: EngineOutput
    text: str
    deltas: list[Any]
    ended: bool
    length: int = 0


class GenerationJob:
    """The engine requests of one HTTP request, from their submission to the end of the last one.

    It is a context manager. On exit it aborts the requests that still run.
    """

    def __init__(
        self, id: str, frontend: EngineClient, choices: list[CompletionState], streamed: bool, prompts: int = 1,
        scores: Sequence[CompletionState] = (), form: str = FIELD,
    ) -> None:  # fmt: skip
        """Submits the completions that have not finished.

        Args:
            id: id of the HTTP request.
            frontend: client of the engine processes.
            choices: completions, in the order of the prompts.
            streamed: whether the response is a stream.
            prompts: number of prompts, each with the same number of completions.
            scores: scoring requests of echoed prompts, which are submitted too.
            form: field of the request that defines the grammar, for error messages.

        Raises:
            RequestError: as `EngineClient.submit`.
        """
        self._form = form
        self.id = id
        self.prompts = prompts
        self.frontend = frontend
        self.choices = choices
        self.streamed = streamed
        self.started = time.monotonic()
        self.first_text: float | None = None
        self.first_block = False
        self.submitted = [choice for choice in (*choices, *scores) if choice.finish_reason is None]
        self.choice_ids = {choice.spec.id for choice in choices}
        self.submitted_ids = [choice.spec.id for choice in self.submitted]
        self.open_ids = set(self.submitted_ids)
        self.outcome = "aborted"
        self.output_queue = frontend.submit([choice.spec for choice in self.submitted])
        self.deadline: asyncio.TimerHandle | None = None
        limit = frontend.config.request_timeout
        if limit:
            self.deadline = asyncio.get_running_loop().call_later(limit, self._time_out, limit)

    def __enter__(self) -> GenerationJob:
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        if self.open_ids:
            self.frontend.abort(list(self.open_ids))
            self.frontend.request_metrics.requests.labels(self.outcome).inc()

    async def receive_aborted(self) -> None:
        """Waits for the last outputs of aborted requests. The log has their counts of tokens and forwards."""
        aborted, queue = self.frontend.aborted, self.output_queue
        if queue.empty() and aborted.keys().isdisjoint(self.submitted_ids):
            return
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                while not (queue.empty() and aborted.keys().isdisjoint(self.submitted_ids)):
                    item = await queue.get()
                    if not isinstance(item, RequestError):
                        index, output = item
                        choice = self.submitted[index]
                        choice.count(output)
                        if choice.finish_reason is None:
                            choice.update(replace(output, finish_reason=None))
        except TimeoutError:
            pass
        finally:
            for id in self.submitted_ids:
                aborted.pop(id, None)

    def _time_out(self, limit: float) -> None:
        self.output_queue.put_nowait(RequestError(f"the request exceeded --request-timeout ({limit:g} s)", status=504))

    @property
    def ended(self) -> bool:
        """Whether all completions have finished."""
        return not self.open_ids

    async def updates(self) -> AsyncIterator[list[OutputDelta]]:
        """Yields new outputs, at most `MAX_BATCH` at once, until all completions have finished.

        Raises:
            RequestError: 500 after a failed step, 503 if the backend exited, 504 at the time limit.
        """
        inbox = self.output_queue
        while self.open_ids:
            items, batch = [await inbox.get()], []
            while not inbox.empty() and len(items) < MAX_BATCH:
                items.append(inbox.get_nowait())
            for item in items:  # before any of them raises
                if not isinstance(item, RequestError):
                    self.submitted[item[0]].count(item[1])
            for item in items:
                if isinstance(item, RequestError):
                    self.outcome = "timeout" if item.status == 504 else "error"
                    raise item
                update = self._absorb(*item)
                if update is not None:
                    batch.append(update)
            if batch:
                yield batch
            if not inbox.empty():
                await asyncio.sleep(0)

    def _absorb(self, index: int, output: EngineOutput) -> OutputDelta | None:
        choice = self.submitted[index]
        if choice.finish_reason is not None:  # a stop string ended it before this output arrived
            return None
        if output.finish_reason in ("error", "abort"):
            self.outcome = "error"
            what = output.error or "the engine aborted it"
            if output.refused:
                self.outcome = "refused"
                raise GrammarError(self._form, what)
            if output.adapter_unloaded:
                self.outcome = "refused"
                raise no_longer_served(choice.spec.adapter)
            raise RequestError(f"request {choice.spec.id} failed: {what}", status=500, code="engine_error")
        text = choice.update(output)
        if choice.spec.id not in self.choice_ids:
            self.open_ids.discard(choice.spec.id)
            return None
        tokens = len(choice.token_ids)
        if self.streamed:
            self._observe_progress(tokens, text)
        if choice.finish_reason is not None:
            if output.finish_reason is None:
                self.frontend.abort([choice.spec.id])
            self._record_end(choice, tokens)
        length = 0 if choice.spec.logprobs is None else len(choice.text or "")
        return OutputDelta(choice, output, text, choice.take_deltas(), choice.finish_reason is not None, length)

    def _observe_progress(self, tokens: int, text: str) -> None:
        metrics = self.frontend.request_metrics
        if text and self.first_text is None:
            self.first_text = time.monotonic() - self.started
            metrics.first_token.observe(self.first_text)
        info = self.frontend.info
        if not self.first_block and info is not None and tokens >= info.block_size:
            self.first_block = True
            metrics.first_block.observe(time.monotonic() - self.started)

    def _record_end(self, choice: CompletionState, tokens: int) -> None:
        self.open_ids.discard(choice.spec.id)
        metrics = self.frontend.request_metrics
        seconds = time.monotonic() - self.started
        metrics.end_to_end.observe(seconds)
        metrics.queue.observe(choice.queue_seconds)
        if tokens:
            metrics.per_token.observe(max(seconds - choice.queue_seconds, 0.0) / tokens)
        if choice.nfe and not choice.spec.read_ids:
            metrics.tokens_per_forward.observe((tokens + choice.eos) / choice.nfe)
        metrics.requests.labels(choice.finish_reason).inc()

    # -- fields of responses

    def usage(self) -> Usage:
        return cast(Usage, usage(self.choices, self._of_prompts))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, each of which counts once."""
        return sum(choice.prompt_tokens for choice in self._of_prompts)

    @property
    def _of_prompts(self) -> list[CompletionState]:
        """The first completion of each prompt. Completions of one prompt are consecutive."""
        return self.choices[:: len(self.choices) // self.prompts]

    def timings(self) -> Timings:
        """Returns the seconds in the queue, until the first text (streams only), and in total."""
        return {
            "queue_seconds": round(self.choices[0].queue_seconds, 6),
            "first_text_seconds": None if self.first_text is None else round(self.first_text, 6),
            "total_seconds": round(time.monotonic() - self.started, 6),
        }
