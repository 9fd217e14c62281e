"""Settings come from the environment alone, and a wrong one is named."""

import pytest

from unmask_operator.settings import Settings, read_settings


def test_each_type_is_read():
    settings = read_settings(
        {
            "PATH": "/bin",
            "UNMASK_OPERATOR_WATCH_NAMESPACES": "a, b",
            "UNMASK_OPERATOR_READ_NODES": "true",
            "UNMASK_OPERATOR_PORT": "9000",
            "UNMASK_OPERATOR_ENGINE_ENV": "NO_PROXY=10.0.0.0/8,.svc\nHF_ENDPOINT=http://hub/?a=b\n",
            "UNMASK_OPERATOR_LOG_LEVEL": "debug",
            "UNMASK_OPERATOR_GPU_NODE_SELECTOR": "pool=gpu\nzone=a\n",
            "UNMASK_OPERATOR_GPU_TOLERATIONS": '[{"key":"nvidia.com/gpu","operator":"Exists"}]',
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert settings.read_nodes is True
    assert settings.port == 9000
    assert settings.engine_env == {"NO_PROXY": "10.0.0.0/8,.svc", "HF_ENDPOINT": "http://hub/?a=b"}
    assert settings.log_level == "debug"
    assert settings.gpu_node_selector == {"pool": "gpu", "zone": "a"}
    assert settings.gpu_tolerations == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert read_settings({}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "tcp://10.0.0.1:80"), ("READ_NODES", "maybe"), ("ENGINE_ENV", "novalue"), ("COLOUR", "red")]
    + [("GPU_TOLERATIONS", value) for value in ("nvidia.com/gpu", '{"key": "a"}', '["a"]', "[")],
)
def test_a_bad_variable_is_named(name, value):
    with pytest.raises(ValueError, match=f"UNMASK_OPERATOR_{name}"):
        read_settings({f"UNMASK_OPERATOR_{name}": value})


@pytest.mark.parametrize(
    ("image", "own"),
    [
        ("unmask-runtime:1.2.3", True),
        ("host:5000/a/unmask-runtime:v1.2.3", True),
        ("unmask-runtime:1.2.3@sha256:" + "0" * 64, True),
        ("unmask-runtime@sha256:" + "0" * 64, False),
        ("unmask-runtime:1.2.4", False),
    ],
)
def test_whether_the_runtime_is_of_the_operators_version(image, own):
    assert Settings(version="1.2.3", runtime_image=image).runtime_is_own_version is own


@pytest.mark.parametrize("selector", ["track=canary", "track!=canary", "a.example/b", "!b", "a=1,b!=2", "a="])
def test_a_selector_is_a_list_of_requirements(selector):
    settings = read_settings({"UNMASK_OPERATOR_WATCH_SELECTOR": selector})
    assert settings.watch_selector == tuple(selector.split(","))


@pytest.mark.parametrize("selector", ["a b", "a in (b)", "!a=b", "a==b", "=b", "a=b;c"])
def test_a_selector_that_is_none_is_refused(selector):
    with pytest.raises(ValueError, match=r"UNMASK_OPERATOR_WATCH_SELECTOR: .* is none of key, !key"):
        read_settings({"UNMASK_OPERATOR_WATCH_SELECTOR": selector})
