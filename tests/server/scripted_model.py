"""Starts the real frontend and the real engine over a model that wants to write the text after the last ``SAY:``.

The logits of a position depend on the position alone: the script's token there is much more probable than the others.
Unlike `scripted_engine`, the unmasking algorithm and grammars decide what is written. One request runs at a time.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tokenizers
import torch

from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.ipc_protocol import Configure
from runtime.server.engine_process import backend
from tests.server.checkpoint import EOS
from tests.server.limits import run

HEIGHT = 20.0  # logit of the script's token; the others have 0


def load_engine(configure: Configure, progress: Any, lost: Any) -> Any:
    engine = backend.load_engine(configure, progress, lost)
    library = tokenizers.Tokenizer.from_file(f"{configure.engine.model}/tokenizer.json")
    script: list[int] = []  # by position
    model, candidates, add = engine.runner.model, engine.runner.model_step.sampler.candidates, engine.add

    def add_scripted(spec: RequestSpec) -> None:
        prompt = library.decode(spec.prompt, skip_special_tokens=False)
        text, _ = json.JSONDecoder().raw_decode(prompt.rsplit("SAY:", 1)[-1])
        script[:] = [EOS] * len(spec.prompt) + library.encode(text, add_special_tokens=False).ids
        add(spec)

    def forward(x: torch.Tensor, batch: Any, pool: Any) -> torch.Tensor:
        return batch.positions[:, None].to(x.dtype)

    def lm_head(positions: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(positions), engine.info.vocab_size)
        for row, position in enumerate(positions[:, 0].long().tolist()):
            logits[row, script[position] if position < len(script) else EOS] = HEIGHT
        return logits

    engine.add, model.forward, model.final_hidden_states = add_scripted, forward, lambda hidden: hidden
    candidates.lm_head, candidates.fused_lm_head = lm_head, None
    return engine


if __name__ == "__main__":
    sys.exit(run("tests.server.scripted_model", load_engine))
