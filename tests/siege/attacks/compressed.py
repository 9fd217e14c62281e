"""Attacks with compressed bodies: bombs, many frames, and bodies that decode to just under the limit."""

import functools
import gzip
import zlib
from itertools import cycle

import zstandard

from tests.siege.attacks.bodies import AT_ONCE, CHAT, at_once, bomb
from tests.siege.registry import attack
from tests.siege.target import Target

BOMB = 1 << 30  # bytes that a bomb decodes to
FRAMES = 10_000


@functools.cache
def compressed() -> list[tuple[str, bytes]]:
    """Returns the codings and bodies, each of at most about 1 MiB."""
    block = bytes(1 << 20)
    deflater, frames = zlib.compressobj(wbits=31), zstandard.ZstdCompressor()
    stream = frames.compressobj(size=BOMB)
    zeros, zstd = (
        b"".join([*(each.compress(block) for _ in range(BOMB // len(block))), each.flush()])
        for each in (deflater, stream)
    )
    return [
        ("gzip", zeros),
        ("zstd", zstd),
        ("gzip, gzip", gzip.compress(zeros)),
        ("zstd, gzip", gzip.compress(zstd)),
        ("gzip", gzip.compress(b"") * FRAMES),
        ("zstd", frames.compress(b" ") * FRAMES),
        ("deflate", zlib.compress(bomb())),
        ("gzip", gzip.compress(bomb())),
        ("zstd", frames.compress(bomb())),
    ]


@attack(
    "compressed-bodies",
    f"{AT_ONCE} at once of compressed bodies: 1 GiB of zeros, {FRAMES:,} frames, 2 MiB of empty parts, every second",
    keyed=True,
    seconds=30,
)
async def compressed_bodies(target: Target) -> None:
    requests = cycle([target.post(CHAT, body, f"Content-Encoding: {coding}") for coding, body in compressed()])
    while target.on():
        await at_once(target, next(requests), AT_ONCE)
        await target.pause(1)
