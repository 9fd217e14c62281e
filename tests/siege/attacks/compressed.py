"""Attacks with compressed bodies: of more than 2 MiB, of many frames, and of costly shapes."""

import functools
import gzip
import zlib

import zstandard

from tests.server.bombs import CHAT
from tests.siege.attacks.bodies import AT_ONCE, PARTS
from tests.siege.registry import attack
from tests.siege.target import Target

SIZE = 16 << 20  # decoded bytes: a dozen of them exceed the bar of memory
FRAMES = 1_000


@functools.cache
def compressed() -> list[tuple[str, bytes]]:
    """Returns the codings and bodies."""
    zstd = zstandard.ZstdCompressor().compress
    zeros = bytes(SIZE)
    return [
        ("gzip", gzip.compress(zeros)),
        ("zstd", zstd(zeros)),
        ("gzip, gzip", gzip.compress(gzip.compress(zeros))),
        ("zstd, gzip", gzip.compress(zstd(zeros))),
        ("gzip", gzip.compress(b"") * FRAMES),
        ("zstd", zstd(b" ") * FRAMES),
        ("deflate", zlib.compress(PARTS)),
        ("zstd", zstd(PARTS)),
    ]


@attack(
    "compressed-bodies",
    f"{AT_ONCE} at once of compressed bodies: {SIZE >> 20} MiB of zeros, {FRAMES:,} frames, empty parts, every second",
    keyed=True,
    seconds=30,
)
async def compressed_bodies(target: Target) -> None:
    requests = [target.post(CHAT, body, f"Content-Encoding: {coding}") for coding, body in compressed()]
    await target.ask_in_turn(requests, AT_ONCE, pause=1)
