"""Tests of bearer keys: which routes need one, several keys at once, rotation by file, and CORS."""

import os
from pathlib import Path

import pytest

import runtime.config.api_keys as config_keys
import runtime.server.middleware.auth as keys_module
from runtime.config import ServerConfig
from runtime.config.api_keys import KEY_FILE_BYTES, KeyFile
from runtime.errors import ConfigError, RequestError
from runtime.server.middleware.auth import ApiKeys
from tests.server.harness import FAKE, ServerProcess, serving
from tests.wait import wait_until


def opens(keys: ApiKeys, authorization: bytes | None) -> bool:
    try:
        keys.check(authorization)
    except RequestError as error:
        return error.status != 401
    return True


ONE, TWO, NEW, NEWER = (f"{word}-0123456789abcdef" for word in ("one", "two", "new", "newer"))


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def look(keys: ApiKeys) -> None:
    """Checks the file twice, because new content must be the same in two successive checks."""
    keys.reload()
    keys.reload()


def test_only_a_valid_key_is_accepted_and_named_without_being_shown() -> None:
    keys = ApiKeys(("one", "two"))
    first, second = keys.check(b"Bearer one"), keys.check(b"bearer two")
    assert first
    assert second
    assert first != second
    assert first == keys.check(b"bearer one")
    assert "one" not in first
    wrong = [None, *b",one,Bearer,Bearer ,Bearer onetwo,Basic one,Bearer \xff,Bearer ONE".split(b",")]
    assert not any(opens(keys, each) for each in wrong)
    assert ApiKeys(("one",)).check(b"Bearer one") == ""  # a single key needs no name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text(ONE)
    return tmp_path / "keys"


@pytest.fixture
def keys(file: Path) -> ApiKeys:
    """Returns the keys of a server that was started with the file and with a fixed key."""
    keys = ApiKeys((TWO,), str(file), (ONE,))
    look(keys)
    return keys


def test_a_changed_file_is_read_again(file: Path, keys: ApiKeys) -> None:
    assert opens(keys, bearer(ONE))
    file.write_text(f"{NEW}, {NEWER}\n")
    look(keys)
    assert [opens(keys, bearer(key)) for key in (NEW, NEWER, TWO, ONE)] == [True, True, True, False]


def test_a_rotated_key_of_a_mounted_secret_is_read(tmp_path: Path) -> None:
    """Rotates the key as a kubelet does: creates a new directory, then replaces one symbolic link."""
    for name, key in (("..1", ONE), ("..2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(key)
        os.utime(tmp_path / name / "keys", (1, 1))  # equal times, so that only the inode differs
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    keys = ApiKeys((), str(tmp_path / "keys"), (ONE,))
    look(keys)
    (tmp_path / "..next").symlink_to("..2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    look(keys)
    assert opens(keys, bearer(NEW))
    assert not opens(keys, bearer(ONE))


def test_a_partially_written_file_is_not_used(file: Path, keys: ApiKeys) -> None:
    text = f"{NEW}{NEWER}\n"
    with file.open("w") as opened:
        for number in range(len(text)):
            opened.write(text[number])
            opened.flush()
            keys.reload()
            assert opens(keys, bearer(ONE))
            assert not opens(keys, bearer(text[: number + 1].strip()))
    look(keys)
    assert opens(keys, bearer(text.strip()))
    assert not opens(keys, bearer(ONE))


def test_a_file_that_changes_while_it_is_read_is_read_again(
    file: Path, keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = keys_module.read_key_file

    def delayed(name: str) -> KeyFile:
        stamp = read(name).stamp
        return KeyFile((NEWER,), [], (*stamp[:3], stamp[3] + 1))

    file.write_text(NEW)
    monkeypatch.setattr(keys_module, "read_key_file", delayed)
    look(keys)
    assert opens(keys, bearer(ONE))
    monkeypatch.setattr(keys_module, "read_key_file", read)
    keys.reload()
    assert opens(keys, bearer(NEW))
    assert not opens(keys, bearer(NEWER))


def test_a_server_with_a_key_or_a_file_of_keys_requires_one() -> None:
    configs = ServerConfig(), ServerConfig(api_key=("k" * 32,)), ServerConfig(api_key_file="keys")
    assert [config.requires_key for config in configs] == [False, True, True]


def test_an_empty_file_revokes_its_keys(file: Path, keys: ApiKeys, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("\n")
    look(keys)
    assert not opens(keys, bearer(ONE))
    assert opens(keys, bearer(TWO))  # the fixed key
    assert "has no valid key: only keys of --api-key are accepted" in caplog.text
    alone = ApiKeys((), str(file), (ONE,))
    look(alone)
    assert not opens(alone, bearer(ONE))
    assert not opens(alone, None)
    assert "has no valid key: all requests are rejected (401)" in caplog.text


@pytest.mark.parametrize(
    "content", [b"short", b"\xff" * 20, b"with spaces in the key", b"x" * 15, b"\xc3\xa9" * 20, b"short\n\xff\xfe\n"]
)
@pytest.mark.parametrize("valid", [(), (NEW,), (NEW, NEWER)])
def test_invalid_keys_of_a_file_are_dropped_and_nothing_else(
    file: Path, keys: ApiKeys, content: bytes, valid: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A key that was removed from the file must not stay valid because another one is wrong."""
    file.write_bytes(b"\n".join([content, *(key.encode() for key in valid)]))
    look(keys)
    look(keys)
    assert not opens(keys, bearer(ONE))
    assert [opens(keys, bearer(key)) for key in (TWO, NEW, NEWER)] == [True, NEW in valid, NEWER in valid]
    for line in content.splitlines():
        assert not opens(keys, b"Bearer " + line)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"--api-key-file: {file}: key 1 of" in record.getMessage()
    assert "not accepted, all others are" in record.getMessage()
    assert "short" not in record.getMessage()


def test_a_file_that_cannot_be_read_leaves_the_current_keys(
    file: Path, keys: ApiKeys, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(b"x" * (KEY_FILE_BYTES + 1))
    look(keys)
    assert opens(keys, bearer(ONE))
    assert "is larger than" in caplog.text
    file.write_text(NEW)
    look(keys)
    assert opens(keys, bearer(NEW))


def test_a_missing_file_leaves_the_current_keys(file: Path, keys: ApiKeys, caplog: pytest.LogCaptureFixture) -> None:
    """A Secret's volume swaps links: the keys stay valid, and a longer absence of the file is logged."""
    file.unlink()
    keys.reload()
    assert not caplog.records
    keys.reload()
    keys.reload()
    assert opens(keys, bearer(ONE))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "is missing; keeping the current keys" in caplog.text
    file.write_text(ONE)
    look(keys)
    file.unlink()
    look(keys)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


def test_a_file_that_was_half_written_at_the_start_is_read_again(file: Path) -> None:
    file.write_text(NEW + "more")
    keys = ApiKeys((), str(file), (NEW,))
    look(keys)
    assert not opens(keys, bearer(NEW))
    assert opens(keys, bearer(NEW + "more"))


def test_the_start_waits_for_a_file_that_is_being_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) < 3:
            with file.open("a") as opened:
                opened.write("more")

    monkeypatch.setattr(config_keys.time, "sleep", sleep)
    assert config_keys.read_settled_key_file(str(file)) == (ONE + "moremore",)
    assert len(waited) == 3
    os.utime(file, (0, 0))
    assert config_keys.read_settled_key_file(str(file)) == (ONE + "moremore",)
    assert len(waited) == 3


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbf" + b"k" * 20 + b"\r\n")
    assert config_keys.read_key_file(str(tmp_path / "keys"))[0] == ("k" * 20,)


def test_a_pipe_is_refused_as_a_file_of_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        config_keys.read_key_file(str(tmp_path / "pipe"))


def test_routes_need_a_key_but_for_probes(checkpoint: Path, tmp_path: Path, fake: ServerProcess) -> None:
    file = tmp_path / "keys"
    file.write_text(ONE)
    flags = ("--api-key-file", str(file), "--cors-allow-origins", "https://a.example", "--api-key", NEW)
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server, server.client() as client:

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return client.post("/generate", json={"prompt": "x", "max_tokens": 2}, headers=headers).status_code

        for route in ("/health", "/ready", "/startup", "/metrics"):
            assert client.get(route).status_code == 200
        for method, route in (("GET", "/v1/models"), ("POST", "/generate"), ("GET", "/openapi.json"), ("GET", "/none")):
            answer = client.request(method, route)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (status(ONE), status(TWO)) == (200, 401)
        file.write_text(TWO)
        wait_until(lambda: (status(ONE), status(TWO)) == (401, 200))
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        preflight = client.options("/generate", headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "https://a.example")
        other = client.get("/health", headers={"Origin": "https://b.example"})
        assert "the process list shows these keys" in server.log
        assert not any(key in text for key in (ONE, TWO, NEW) for text in (server.log, answer.text))
    with fake.client() as client:
        same = client.get("/health", headers={"Origin": fake.url})
    assert all("access-control-allow-origin" not in answer.headers for answer in (other, same))
