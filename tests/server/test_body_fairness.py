"""Tests that large bodies of one API key, which are costly to parse, delay but do not displace those of another key."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.server.serving.preprocessor import SMALL_BODY
from tests.server.bombs import LARGEST
from tests.server.harness import FAKE, ServerProcess, serving

GOOD, HOSTILE, AT_ONCE = 160, 300, 96
KEYS = {"good": "k" * 20, "hostile": "h" * 20}
HOSTILE_KINDS = ("some of everything", "ids and a string", "numbers", "escapes", "prompts of ids")


@pytest.fixture(scope="module")
def keyed(checkpoint: Path) -> Iterator[ServerProcess]:
    """Yields a server with a model length at which a large body may be a prompt."""
    flags = ("--model", str(checkpoint), "--max-model-len", "65536", "--max-queue", "256")
    keys = tuple(itertools.chain.from_iterable(("--api-key", key) for key in KEYS.values()))
    with serving(*flags, *keys, module=FAKE) as server:
        yield server


def test_large_bodies_of_one_key_are_answered_during_costly_ones_of_another(keyed: ServerProcess) -> None:
    good = json.dumps({"prompt": "x" * (2 * SMALL_BODY), "max_tokens": 1}).encode()
    requests = [("good", "/generate", good)] * GOOD
    requests += [("hostile", *LARGEST[kind]) for kind in itertools.islice(itertools.cycle(HOSTILE_KINDS), HOSTILE)]
    random.Random(0).shuffle(requests)

    with keyed.client() as client, ThreadPoolExecutor(AT_ONCE) as pool:

        def send(request: tuple[str, str, bytes]) -> tuple[str, int]:
            name, route, body = request
            headers = {"Authorization": f"Bearer {KEYS[name]}", "Content-Type": "application/json"}
            response = client.post(route, content=body, headers=headers)
            # more than 56 MiB of incomplete bodies at once interrupt the oldest uploads, of any key
            if response.status_code == 503 and name == "good":
                response = client.post(route, content=body, headers=headers)
            return name, response.status_code

        answers = Counter(pool.map(send, requests))
    assert answers["good", 200] == GOOD, answers
    assert {status for name, status in answers if name == "hostile"} <= {200, 400, 429, 503}, answers
