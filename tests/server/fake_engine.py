"""An engine without a model. It answers "abcabc...", one token per step, and fails as the request's salt says.

Salts:

* ``slow``: one token per 50 ms.
* ``hold:PATH``: the second token waits until the file PATH exists.
* ``endless``: there is no second token, and no answer to a read.
* ``fail``: after a token, the request ends with the error of a failed step, as after an invalid batch.
* ``crash``: the engine raises.
* ``exit``: the process exits.

Loading waits at 50% for the file at the path in `LOAD_VARIABLE`. A step blocks while the file at the path in
`BLOCK_VARIABLE` exists. The module runs the real frontend over backends with this engine.
"""

import os
import sys
import time
from typing import Any

from runtime.errors import ConfigError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, fraction_field
from runtime.server.engine_client.ipc_protocol import Configure
from tests.server.limits import run

LETTERS = [64, 65, 66]  # a, b, c in the test tokenizer
LOAD_VARIABLE, BLOCK_VARIABLE = "TEST_SERVER_LOAD", "TEST_SERVER_BLOCK"


def held(salt: str) -> bool:
    return salt == "endless" or (salt.startswith("hold:") and not os.path.exists(salt.removeprefix("hold:")))


class FakeEngine:
    def __init__(self, configure: Configure, progress: Any, lost: Any) -> None:
        config = configure.engine
        for done in (0, 50, 100):
            progress("weights", done, 100)
            while done == 50 and (path := os.environ.get(LOAD_VARIABLE)) and not os.path.exists(path):
                time.sleep(0.01)
        if config.accept_threshold == 0:
            raise ConfigError("tensor 'model.norm.weight' is missing")
        self.info = EngineInfo(
            family="fake", strategy="multi_bd", device="cpu", dtype="float32", vocab_size=264, max_token_id=260,
            mask_token_id=256, eos_token_ids=[257], block_size=8, buffer_size=1, page_size=8,
            num_pages=config.num_pages or 4096,
            max_model_len=config.max_model_len or 4096, max_num_reqs=config.max_num_reqs,
            max_num_batched_tokens=8192, prefix_caching=True, strategy_fields=[],
            algorithms=[
                AlgorithmInfo(key="threshold", fields=(fraction_field("accept_threshold", 0.9, "what is taken"),)),
            ],
            default_algorithm="threshold", model_revision="0123456789" * 4,
        )  # fmt: skip
        self.live: dict[str, tuple[RequestSpec, int, float]] = {}
        self.total = 0
        self.brought: list[EngineOutput] = []

    def add(self, spec: RequestSpec) -> None:
        self.live[spec.id] = (spec, 0, time.monotonic())

    def abort(self, request_id: str) -> EngineOutput | None:
        found = self.live.pop(request_id, None)
        if found is None:
            return None
        spec, done, _ = found
        new = range(done) if spec.stream_mode == "final" else ()
        letters = [LETTERS[i % 3] for i in new]
        return EngineOutput(
            id=spec.id, nfe=done, generated=done, forwards=done, new_tokens=letters, finish_reason="abort"
        )

    def has_work(self) -> bool:
        return bool(self.live)

    def set_overlap_callback(self, work: object) -> bool:
        return False

    def capture_next(self) -> bool:
        return False

    def take_outputs(self) -> list[EngineOutput]:
        brought, self.brought = self.brought, []
        return brought

    def execute_step(self) -> None:
        time.sleep(0.002)
        while os.path.exists(os.environ.get(BLOCK_VARIABLE, "")):
            time.sleep(0.01)
        outputs = self.brought
        for spec, done, due in list(self.live.values()):
            if spec.cache_salt == "crash":
                raise RuntimeError("the fake engine broke")
            if spec.cache_salt == "exit":
                os._exit(3)
            if done and spec.cache_salt == "fail":
                del self.live[spec.id]
                outputs.append(
                    EngineOutput(
                        id=spec.id,
                        nfe=done,
                        generated=done,
                        forwards=done,
                        finish_reason="error",
                        error="RuntimeError: bad step",
                    )
                )
                continue
            if time.monotonic() < due or ((done or spec.read_ids) and held(spec.cache_salt)):
                continue
            self.total += 1
            done += 1
            last = done == spec.max_tokens
            self.live[spec.id] = (spec, done, time.monotonic() + (0.05 if spec.cache_salt == "slow" else 0))
            if last:
                del self.live[spec.id]
            if last or spec.stream_mode != "final":
                new = range(done - 1, done) if spec.stream_mode != "final" else range(done)
                outputs.append(
                    EngineOutput(
                        id=spec.id, nfe=done, generated=done, forwards=done, new_tokens=[LETTERS[i % 3] for i in new],
                        finish_reason="length" if last else None, cached_tokens=0, queue_seconds=0.0,
                    )
                )  # fmt: skip

    def progress(self) -> list[EngineOutput]:
        whole = [(spec, done) for spec, done, _ in self.live.values() if done and spec.stream_mode == "final"]
        return [EngineOutput(id=spec.id, nfe=done, generated=done, forwards=done) for spec, done in whole]

    def stats(self) -> EngineStats:
        live = len(self.live)
        return EngineStats(pages_total=4096, pages_used=live, generated_tokens=self.total, forwards_denoise=self.total)


if __name__ == "__main__":
    sys.exit(run("tests.server.fake_engine", FakeEngine, prepare=lambda: None))
