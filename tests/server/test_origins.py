"""Tests that a server without keys refuses pages of other origins and serves clients that are no browsers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from runtime.config.config import ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.server.middleware.auth import OriginPolicy, host_name, is_loopback, is_own
from tests.server.harness import FAKE, serving

EVIL = "https://evil.example"
PAGES = ("/", "/docs")
Headers = dict[str, str]


def refusal(
    headers: Headers | Iterable[tuple[str, str]],
    *,
    host: str = "127.0.0.1",
    origins: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    method: str = "POST",
    path: str = "/v1/completions",
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


HERE = {"Host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        HERE,
        {"Host": "localhost:8000"},
        {**HERE, "Content-Type": "text/plain"},
        {**HERE, "Origin": "http://127.0.0.1:8000"},
        {**HERE, "Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
        {**HERE, "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_programs_and_own_pages_are_served(headers: Headers) -> None:
    assert refusal(headers) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "unknown", ""])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_requests_of_pages_of_other_sites_are_refused(site: str, method: str) -> None:
    assert refusal({**HERE, "Sec-Fetch-Site": site}, method=method) == "Sec-Fetch-Site"
    assert refusal({**HERE, "Sec-Fetch-Site": site, "Origin": EVIL}, method=method) == "Sec-Fetch-Site"
    assert refusal({**HERE, "Sec-Fetch-Site": site, "Origin": "http://127.0.0.1:8000"}) == "Sec-Fetch-Site"


@pytest.mark.parametrize(
    "origin",
    [EVIL, "null", "", "http://127.0.0.1:8001", "http://localhost:8000", "https://127.0.0.1:8000x", "file://",
     "http://127.0.0.1", "chrome-extension://abc", "http://127.0.0.1:8000.evil.example", "http://evil@127.0.0.1:8001"],
)  # fmt: skip
def test_without_fetch_metadata_the_origin_decides(origin: str) -> None:
    """Browsers before 2023 send no metadata, and no browser does in plain HTTP to a name that is not loopback."""
    assert refusal({**HERE, "Origin": origin}) == "Origin"


def test_each_of_several_origins_or_sites_is_checked() -> None:
    own = "http://127.0.0.1:8000"
    assert refusal([*HERE.items(), ("Origin", own), ("Origin", EVIL)]) == "Origin"
    sites = [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")]
    assert refusal([*HERE.items(), *sites]) == "Sec-Fetch-Site"


def test_an_allowed_origin_is_served_and_no_other() -> None:
    allowed = ("https://app.example",)
    for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        assert refusal({**HERE, **site, "Origin": "https://app.example"}, origins=allowed) is None
        assert refusal({**HERE, **site, "Origin": EVIL}, origins=allowed) is not None
        assert refusal({**HERE, **site, "Origin": EVIL}, origins=("*",)) is None
    assert refusal({**HERE, "Sec-Fetch-Site": "cross-site"}, origins=allowed) == "Sec-Fetch-Site"


def test_a_link_of_another_site_leads_to_a_page_and_to_nothing_else() -> None:
    link = {**HERE, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert refusal(link, method="GET", path="/") is None
    assert refusal(link, method="GET", path="/v1/models") == "Sec-Fetch-Site"
    assert refusal(link, method="POST", path="/") == "Sec-Fetch-Site"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.1", "", "[::2]"]
)
def test_on_loopback_a_name_of_another_machine_is_refused(host: str) -> None:
    """After DNS rebinding, requests of the attacker's page have the same origin."""
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for address in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"):
        assert refusal(headers, host=address) == "Host"
    assert refusal({"Host": host}, path="/health") == "Host"
    for address in ("::", "0.0.0.0", "10.0.0.1", ""):
        assert refusal({"Host": host}, host=address) is None


def test_allowed_hosts_are_names_added_to_those_of_loopback() -> None:
    for host in ("unmask.example", "UNMASK.example.:443", "localhost", "a.localhost:1", "[::1]:8000", "127.0.0.2"):
        assert refusal({"Host": host}, hosts=("Unmask.example",)) is None
    assert refusal({"Host": "evil.example"}, hosts=("unmask.example",)) == "Host"
    assert refusal({"Host": "evil.example"}, hosts=("*",)) is None


def test_allowed_hosts_hold_on_every_address_but_for_probes() -> None:
    """A kubelet sends its probes to the pod's address."""
    assert refusal({"Host": "evil.example"}, host="::", hosts=("unmask.example",)) == "Host"
    for path in ("/health", "/ready", "/startup", "/metrics"):
        assert refusal({"Host": "10.1.2.3:8000"}, host="::", hosts=("unmask.example",), path=path) is None


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://a.example", "a.example", True),
        ("http://a.example", "a.example:80", True),
        ("https://a.example", "a.example", True),  # a proxy terminated TLS
        ("https://a.example", "a.example:443", True),
        ("https://a.example", "a.example:80", False),
        ("http://a.example:8000", "a.example", False),
        ("http://A.example:8000", "a.EXAMPLE:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://[::1]:8000", "[::2]:8000", False),
        ("http://b.example", "a.example", False),
        ("http://a.example:no", "a.example", False),
        ("http://a.example", "a.example:no", False),
        ("null", "null", False),
        ("http://", "", False),
    ],
)
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


@pytest.mark.parametrize("more", [(), ("--frontend-processes", "2")])
def test_no_route_of_an_open_server_answers_a_page_of_another_origin(checkpoint: Path, more: tuple[str, ...]) -> None:
    body = {"prompt": "x", "max_tokens": 2}
    with serving("--model", str(checkpoint), "--lora-routes", *more, module=FAKE) as server, server.client() as client:
        for method, path in ROUTES:
            headers: Headers
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": EVIL}, {"Host": "evil.example"}):
                answer = client.request(method, path, headers={"Content-Type": "text/plain", **headers}, content="{}")
                assert answer.status_code == 403, (method, path, headers)
                error: dict[str, Any] = answer.json()["error"]
                assert error["type"] == "permission_error"
                assert error["message"].startswith(next(iter(headers)))
        for headers in ({}, {"Origin": server.url}, {"Content-Type": "text/plain"}):
            assert client.post("/generate", json=body, headers=headers).status_code == 200
        assert (
            client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200
        )


def test_with_keys_only_the_key_counts(checkpoint: Path) -> None:
    key = "0123456789abcdef"
    headers = {"Authorization": f"Bearer {key}", "Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Host": "evil.example"}
    variables = {"UNMASK_API_KEY": key}
    with serving("--model", str(checkpoint), module=FAKE, env=variables) as server, server.client() as client:
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
