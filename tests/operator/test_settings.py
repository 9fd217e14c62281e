"""Tests that settings come only from the environment, and that an error names the variable."""

import itertools

import kopf
import pytest

from unmask_operator.__main__ import main
from unmask_operator.settings import Settings, configure_kopf, read_settings

ENV = {"A": " a=b ", "B": "x\u2028y\x0bz\x85", "C": "", "D": "$(HOST)$$"}
LABELS = {"pool": "gpu", "zone": "a", "empty": ""}
LINES = " pool=gpu \r\n\tzone = a\t\nempty= \n"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("watch_namespaces", "a, b", ("a", "b")),
        ("read_nodes", "true", True),
        ("port", "9000", 9000),
        ("log_level", "debug", "debug"),
        ("engine_env", "\n".join(f"{name}={value}" for name, value in ENV.items()), ENV),
        ("gpu_tolerations", '[{"key":"a","operator":"Exists"}]', [{"key": "a", "operator": "Exists"}]),
        *((f"{name}_selector", LINES, LABELS) for name in ("engine_node", "gpu_node", "operator")),
        ("watch_selector", "a=1,b!=2,a.example/b,!c,d=", ("a=1", "b!=2", "a.example/b", "!c", "d=")),
    ],
)
def test_a_variable_is_read(name, text, value):
    assert read_settings({"PATH": "/bin", f"UNMASK_OPERATOR_{name.upper()}": text}) == Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PORT", "tcp://10.0.0.1:80"), ("READ_NODES", "maybe"), ("ENGINE_ENV", "novalue"), ("COLOUR", "red")),
        *(("GPU_TOLERATIONS", value) for value in ("nvidia.com/gpu", '{"key": "a"}', '["a"]', "[")),
        *(("WATCH_SELECTOR", value) for value in ("a b", "a in (b)", "!a=b", "a==b", "=b", "a=b;c")),
    ],
)
def test_a_bad_variable_is_named(name, value):
    with pytest.raises(ValueError, match=f"UNMASK_OPERATOR_{name}"):
        read_settings({f"UNMASK_OPERATOR_{name}": value})


@pytest.mark.parametrize(
    ("image", "own"),
    [
        ("unmask-runtime:1.2.3", True), ("host:5000/a/unmask-runtime:v1.2.3", True),
        ("unmask-runtime:1.2.3@sha256:" + "0" * 64, True), ("unmask-runtime@sha256:" + "0" * 64, False),
        ("unmask-runtime:1.2.4", False),
    ],
)  # fmt: skip
def test_the_version_of_the_runtime_image_is_compared_with_the_operators(image, own):
    assert Settings(version="1.2.3", runtime_image=image).runtime_is_own_version is own


def test_the_help_lists_the_variables_and_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert {f"UNMASK_OPERATOR_{name.upper()}" for name in vars(Settings())} <= {*capsys.readouterr().out.split()}
    with pytest.raises(SystemExit) as ended:
        main(["--port", "9000"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --port 9000" in capsys.readouterr().err


@pytest.fixture
def target():
    """Returns kopf's settings, as the operator configures them."""
    target = kopf.OperatorSettings()
    configure_kopf(target, Settings())
    return target


def test_kopf_pages_its_lists_and_neither_scans_nor_peers_nor_posts_nor_writes(target):
    assert (target.watching.chunk_size, target.queueing.idle_timeout) == (100, 0.05)
    assert (target.watching.server_timeout, target.watching.inactivity_timeout) == (600, 180)
    assert isinstance(target.watching.server_timeout, int), "the API server rejects a fraction as timeoutSeconds"
    assert target.scanning.disabled
    assert target.peering.standalone
    assert not target.posting.enabled
    assert "kopf" not in target.persistence.finalizer
    assert target.persistence.diffbase_storage.fetch(body=None) is None
    assert target.persistence.diffbase_storage.build(body=None) == {}


def test_every_request_of_kopf_is_retried_without_limit(target):
    backoffs = target.networking.error_backoffs
    for _ in range(2):  # one request after the other, each with the pauses from the start
        pauses = list(itertools.islice(backoffs, 1000))
        assert pauses[:6] == [1, 2, 4, 8, 16, 30]
        assert set(pauses[5:]) == {30}
