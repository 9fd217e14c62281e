"""Tests that a server without keys refuses pages of other origins and serves clients that are no browsers."""

from pathlib import Path
from typing import Any

import pytest

from runtime.config.config import ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.server.middleware.auth import OriginPolicy, host_name, is_loopback, is_own
from tests.server.harness import FAKE, KEY, ServerProcess, serving

EVIL = "https://evil.example"
PAGES = ("/", "/docs")
Headers = dict[str, str] | list[tuple[str, str]]


def refusal(
    headers: Headers, origins: tuple[str, ...], hosts: tuple[str, ...], host: str, method: str, path: str
) -> str | None:
    """Returns the header that a refusal names; None if the request is served."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    try:
        OriginPolicy(host, origins, hosts, PAGES).check({"method": method, "path": path, "headers": raw})
    except RequestError as error:
        refused = error
    else:
        return None
    assert refused.status == 403
    assert refused.message.startswith(f"{refused.param}: ")
    return refused.param


HERE, OWN = {"Host": "127.0.0.1:8000"}, {"Origin": "http://127.0.0.1:8000"}
CROSS, SAME, LINK = ({"Sec-Fetch-Site": site} for site in ("cross-site", "same-origin", "cross-site"))
LINK |= {"Sec-Fetch-Mode": "navigate"}
APP: dict[str, Any] = {"origins": ("https://app.example",)}
NAMED: dict[str, Any] = {"hosts": ("Unmask.example",)}
# Headers besides the host of the server, the policy and the request, and the header that is refused.
CASES: list[tuple[Any, dict[str, Any], str | None]] = [
    # programs and pages of the server
    ({}, {}, None), ({"Host": "localhost:8000"}, {}, None), ({"Content-Type": "text/plain"}, {}, None), (OWN, {}, None),
    ({"Origin": EVIL, **SAME}, {}, None),
    ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, {}, None),
    # pages of other sites
    *(({"Sec-Fetch-Site": site}, {}, "Sec-Fetch-Site")
      for site in ("cross-site", "same-site", "Cross-Site", "unknown", "")),
    *((CROSS, {"method": method}, "Sec-Fetch-Site") for method in ("GET", "OPTIONS")),
    ({**CROSS, "Origin": EVIL}, {}, "Sec-Fetch-Site"), ({**CROSS, **OWN}, {}, "Sec-Fetch-Site"),
    # browsers before 2023 send no metadata, and no browser does in plain HTTP to a name that is not loopback
    *(({"Origin": origin}, {}, "Origin")
      for origin in (EVIL, "null", "", "http://127.0.0.1:8001", "http://localhost:8000", "https://127.0.0.1:8000x",
                     "file://", "http://127.0.0.1", "http://127.0.0.1:8000.evil.example",
                     "http://evil@127.0.0.1:8001")),
    # several headers of one name
    ([*HERE.items(), *OWN.items(), ("Origin", EVIL)], {}, "Origin"),
    ([*HERE.items(), *SAME.items(), *CROSS.items()], {}, "Sec-Fetch-Site"),
    # allowed origins
    *(({**site, "Origin": "https://app.example"}, APP, None) for site in ({}, CROSS, {"Sec-Fetch-Site": "same-site"})),
    ({"Origin": EVIL}, APP, "Origin"), ({**CROSS, "Origin": EVIL}, APP, "Sec-Fetch-Site"),
    ({**CROSS, "Origin": EVIL}, {"origins": ("*",)}, None), (CROSS, APP, "Sec-Fetch-Site"),
    # a link of another site leads to a page and to nothing else
    (LINK, {"method": "GET", "path": "/"}, None),
    (LINK, {"method": "GET", "path": "/v1/models"}, "Sec-Fetch-Site"),
    (LINK, {"path": "/"}, "Sec-Fetch-Site"),
    # after DNS rebinding, requests of the attacker's page have the same origin
    *(({"Host": name, "Origin": f"http://{name}", **SAME}, {"host": address}, "Host")
      for name in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.1", "", "[::2]")
      for address in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]")),
    ({"Host": "evil.example"}, {"path": "/health"}, "Host"),
    *(({"Host": "evil.example"}, {"host": address}, None) for address in ("::", "0.0.0.0", "10.0.0.1", "")),
    # allowed hosts are names added to those of loopback
    *(({"Host": name}, NAMED, None) for name in ("unmask.example", "UNMASK.example.:443", "localhost",
                                                 "a.localhost:1", "[::1]:8000", "127.0.0.2")),
    ({"Host": "evil.example"}, NAMED, "Host"), ({"Host": "evil.example"}, {"hosts": ("*",)}, None),
    # they hold on every address, but for probes: a kubelet sends them to the pod's address
    ({"Host": "evil.example"}, {"host": "::", **NAMED}, "Host"),
    *(({"Host": "10.1.2.3:8000"}, {"host": "::", "path": path, **NAMED}, None)
      for path in ("/health", "/ready", "/startup", "/metrics")),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "more", "refused"), CASES)
def test_a_request_of_a_page_is_served_by_its_origin(headers: Any, more: dict[str, Any], refused: str | None) -> None:
    defaults = {"origins": (), "hosts": (), "host": "127.0.0.1", "method": "POST", "path": "/v1/completions"}
    sent = {**HERE, **headers} if isinstance(headers, dict) else headers
    assert refusal(sent, **{**defaults, **more}) == refused  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://a.example", "a.example", True), ("http://a.example", "a.example:80", True),
        ("https://a.example", "a.example", True),  # a proxy terminated TLS
        ("https://a.example", "a.example:443", True), ("https://a.example", "a.example:80", False),
        ("http://a.example:8000", "a.example", False), ("http://A.example:8000", "a.EXAMPLE:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True), ("http://[::1]:8000", "[::2]:8000", False),
        ("http://b.example", "a.example", False), ("http://a.example:no", "a.example", False),
        ("http://a.example", "a.example:no", False), ("null", "null", False), ("http://", "", False),
    ],
)  # fmt: skip
def test_an_origin_is_the_servers_own_by_host_and_port(origin: str, host: str, own: bool) -> None:
    assert is_own(origin, host) is own


def test_names_of_loopback() -> None:
    names = ["localhost", "x.localhost", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"]
    assert all(is_loopback(host_name(name)) for name in [*names, "LOCALHOST.", "[::1]:5"])
    assert not any(is_loopback(name) for name in ("", "::", "0.0.0.0", "10.0.0.1", "notlocalhost", "localhost.example"))


@pytest.mark.parametrize("value", ["http://a.example", "a.example:8000", "a b", "-", "[::1]", "*.example"])
def test_a_host_that_can_never_match_is_refused_at_start(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--allowed-hosts: .* is not a host name or address"):
        ServerConfig(allowed_hosts=(value,))


ROUTES = (
    ("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/responses"),
    ("POST", "/v1/messages"), ("POST", "/generate"), ("POST", "/infill"), ("POST", "/tokenize"), ("GET", "/metrics"),
    ("POST", "/v1/load_lora_adapter"), ("GET", "/playground/main.js"), ("GET", "/playground/state"),
    ("GET", "/openapi.json"), ("OPTIONS", "/v1/models"),
)  # fmt: skip


def test_no_route_of_an_open_server_answers_a_page_of_another_origin(fake: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 2}
    with fake.client() as client:
        for method, path in ROUTES:
            headers: Headers
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": EVIL}, {"Host": "evil.example"}):
                answer = client.request(method, path, headers={"Content-Type": "text/plain", **headers}, content="{}")
                assert answer.status_code == 403, (method, path, headers)
                error: dict[str, Any] = answer.json()["error"]
                assert error["type"] == "permission_error"
                assert error["message"].startswith(next(iter(headers)))
        for headers in ({}, {"Origin": fake.url}, {"Content-Type": "text/plain"}):
            assert client.post("/generate", json=body, headers=headers).status_code == 200
        linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert client.get("/", headers=linked).status_code == 200


def test_with_keys_only_the_key_counts(keyed: ServerProcess) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Host": "evil.example"}
    with keyed.client() as client:
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_allowed_origins_and_hosts_are_flags(checkpoint: Path) -> None:
    flags = ("--cors-allow-origins", "https://app.example", "--allowed-hosts", "unmask.example,other.example")
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server, server.client() as client:
        page = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        answer = client.get("/v1/models", headers={**page, "Host": "other.example:80"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert client.get("/v1/models", headers={**page, "Host": "third.example"}).status_code == 403
        assert client.get("/v1/models", headers={**page, "Origin": EVIL}).status_code == 403
