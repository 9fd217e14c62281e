"""An engine without a model that answers with the JSON string after the last ``SAY:`` in the prompt.

Tokens become stable in runs of random lengths, drawn from the request's seed. Special tokens in the text get their
special ids. The module runs the real frontend over backends with this engine.
"""

import json
import random
import sys
from typing import Any

import msgspec

from runtime.request.engine_messages import EngineOutput, RequestSpec
from runtime.server.engine_client.ipc_protocol import Configure
from tests.server.checkpoint import EOS, make_tokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.limits import run


class ScriptedEngine(FakeEngine):
    def __init__(self, configure: Configure, progress: Any, lost: Any) -> None:
        super().__init__(configure, progress, lost)
        self.info = msgspec.structs.replace(
            self.info, reasoning="think", structured_output_error="scripts know no grammars", vocab_size=272,
            max_token_id=271,
        )  # fmt: skip
        self.tokenizer = make_tokenizer(tagged=True)
        self.scripts: dict[str, list[int]] = {}

    def add(self, spec: RequestSpec) -> None:
        script = self.tokenizer.decode(spec.prompt, skip_special_tokens=False).rsplit("SAY:", 1)[-1]
        decode = json.JSONDecoder().raw_decode
        if script.startswith("\\"):  # it is in a JSON string: the result of an agent's tool can be JSON
            script = decode(f'"{script}')[0]
        text = decode(script)[0]
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.scripts[spec.id] = [*ids, EOS][: spec.max_tokens]
        super().add(spec)

    def abort(self, request_id: str) -> EngineOutput | None:
        self.scripts.pop(request_id, None)
        return super().abort(request_id)

    def execute_step(self) -> None:
        outputs = self.brought
        for spec, done, _ in list(self.live.values()):
            left = self.scripts[spec.id]
            rng = random.Random(f"{spec.seed} {done}")
            size = len(left) if spec.stream_mode == "final" else rng.choice([1, 1, 2, 3, 8, 32])
            new, self.scripts[spec.id] = left[:size], left[size:]
            ended = not self.scripts[spec.id]
            self.live[spec.id] = (spec, done + 1, 0.0)
            eos = EOS in new
            if ended:
                self.abort(spec.id)
            outputs.append(
                EngineOutput(
                    id=spec.id, nfe=done + 1, new_tokens=[token for token in new if token != EOS],
                    finish_reason=("stop" if eos else "length") if ended else None, cached_tokens=0, queue_seconds=0.0,
                    eos=eos,
                )
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run("tests.server.scripted_engine", ScriptedEngine, prepare=lambda: None))
