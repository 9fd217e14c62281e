"""Counts the plots of stories over seeds: ``python -m training.demo.plots --model DIR``.

Each request for a story is sampled with several seeds.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import runtime
from runtime.bench.accuracy import MAX_TOKENS
from training.demo.tasks import all_tasks
from training.demo.tasks.base import single
from training.demo.tasks.story import plot_of

# Requests, with the roles that they name.
REQUESTS: Mapping[str, Mapping[str, str]] = {
    "Tell me a story.": {},
    "Write a short story.": {},
    "A bedtime story, please": {},
    "Tell me a story about a fox.": {"an": "fox"},
    "Tell me a story about Anna, a fox and a river.": {"he": "Anna", "an": "fox", "pl": "river"},
    "Write a short story about Bruno and a dragon.": {"he": "Bruno", "an": "dragon"},
    "Tell me a story about Paula.": {"he": "Paula"},
    "Invent a tale about the desert.": {"pl": "desert"},
    "Tell me a story about music.": {"th": "music", "th_bare": "yes"},
}


def main(argv: list[str] | None = None) -> int:
    runtime.wait_passively()
    parser = argparse.ArgumentParser(description="Count the plots of stories over seeds.")
    parser.add_argument("--model", help="checkpoint directory; default: the shipped demo")
    parser.add_argument("--device", help="cpu or cuda; default: cuda if available")
    parser.add_argument("--seeds", type=int, default=20, help="seeds per request; default: 20")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    args = parser.parse_args(argv)
    from runtime import LLM, SamplingParams

    check = all_tasks()["story"].check
    named = {"model": args.model, "device": args.device}
    figures = []
    with LLM(max_num_reqs=args.seeds, **{k: v for k, v in named.items() if v is not None}) as llm:
        for prompt, roles in REQUESTS.items():
            sample = single("story", prompt, "", **roles)
            params = [
                SamplingParams(max_tokens=MAX_TOKENS, temperature=args.temperature, seed=seed)
                for seed in range(args.seeds)
            ]
            texts = [out.text for out in llm.generate([list(sample.messages)] * args.seeds, params)]
            right = [text for text in texts if check(sample, text)]
            plots = Counter(str(plot_of(text)) for text in right)
            figures.append({"prompt": prompt, "right": len(right), "different": len(set(right)), "plots": dict(plots)})
            print(f"{prompt} {len(right)} of {args.seeds} right, {len(set(right))} different, plots {dict(plots)}")
    if args.json:
        args.json.write_text(json.dumps({"seeds": args.seeds, "requests": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
