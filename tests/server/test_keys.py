"""Bearer keys: which routes need one, several at once, rotation by file, and CORS beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import RequestError
from runtime.server.keys import Keys
from tests.server.harness import FAKE, serving, wait_for


def opens(keys: Keys, authorization: bytes | None) -> bool:
    try:
        keys.check(authorization)
    except RequestError as error:
        return error.status != 401
    return True


def test_a_key_opens_and_nothing_else_does() -> None:
    keys = Keys(("one", "two"), None)
    assert keys.needed
    assert opens(keys, b"Bearer one")
    assert opens(keys, b"bearer two")
    for wrong in (
        None,
        b"",
        b"one",
        b"Bearer",
        b"Bearer ",
        b"Bearer onetwo",
        b"Basic one",
        b"Bearer \xff",
        b"Bearer ONE",
    ):
        assert not opens(keys, wrong)
    assert not Keys((), None).needed


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    keys = Keys(("fixed", "old"), str(file))
    assert opens(keys, b"Bearer old")
    file.write_text("new, newer\n")
    assert opens(keys, b"Bearer new")
    assert opens(keys, b"Bearer newer")
    assert opens(keys, b"Bearer fixed")
    assert not opens(keys, b"Bearer old")
    file.unlink()  # a secret that is being replaced: what was valid stays valid
    assert opens(keys, b"Bearer new")
    file.write_text("")
    assert opens(keys, b"Bearer new")


def test_routes_need_a_key_but_for_probes(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("secret-1")
    flags = ("--api-key-file", str(file), "--cors-allow-origins", "https://a.example")
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server, server.client() as client:
        for route in ("/health", "/ready", "/startup", "/metrics"):
            assert client.get(route).status_code == 200
        for method, route in (("GET", "/v1/models"), ("POST", "/generate"), ("GET", "/openapi.json"), ("GET", "/none")):
            answer = client.request(method, route)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        wrong = client.post("/generate", json={"prompt": "x"}, headers={"Authorization": "Bearer secret-2"})
        assert wrong.status_code == 401
        assert "secret" not in wrong.text
        body = {"prompt": "x", "max_tokens": 2}
        assert client.post("/generate", json=body, headers={"Authorization": "Bearer secret-1"}).status_code == 200
        file.write_text("secret-2")
        assert client.post("/generate", json=body, headers={"Authorization": "Bearer secret-1"}).status_code == 401
        assert client.post("/generate", json=body, headers={"Authorization": "Bearer secret-2"}).status_code == 200
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        preflight = client.options("/generate", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        other = client.get("/health", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        assert "secret" not in server.log


@pytest.mark.parametrize("origin", ["https://a.example"])
def test_no_cors_without_the_flag(fake, origin: str) -> None:
    wait_for(lambda: fake.metrics()["unmask_backends_ready"] == 1, 20)
    with fake.client() as client:
        assert "access-control-allow-origin" not in client.get("/health", headers={"Origin": origin}).headers
