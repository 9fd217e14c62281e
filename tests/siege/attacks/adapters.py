"""An attack by legal requests that hold all slots of adapters on the device."""

import asyncio
from typing import Any

from tests.siege.registry import attack, control
from tests.siege.target import Target

SLOTS = 8
NAMES = tuple(f"a{number}" for number in range(SLOTS + 1))
OTHERS = NAMES[-1]  # the adapter of innocents
LONG = 3_000  # tokens


@attack(
    "adapters",
    f"{SLOTS} long answers at once, each on another adapter, so that they hold all {SLOTS} slots",
    keyed=True,
    seconds=30,
    server_args=("--max-loras", str(SLOTS), *(part for name in NAMES for part in ("--lora", f"{name}=demo://roman"))),
    model=OTHERS,
    slowdown=2.0,
)
async def adapters(target: Target) -> None:
    await _answers(target, NAMES[:SLOTS])


@control("adapters")
async def one_adapter(target: Target) -> None:
    await _answers(target, NAMES[:1] * SLOTS)


async def _answers(target: Target, names: tuple[str, ...]) -> None:
    async def one(name: str) -> None:
        body: dict[str, Any] = {"model": name, "prompt": "a" * 500, "max_tokens": LONG, "ignore_eos": True}
        while target.on():
            await target.ask(target.post("/v1/completions", body))
            await target.pause(0.05)

    await asyncio.gather(*map(one, names))
