"""Tests of compose.yaml: the version of its image, and the configuration of Prometheus and Grafana."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from runtime.config import parse
from tests.server.harness import serving
from tools import dashboard
from unmask_operator.settings import VERSION

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES, CONFIGS = COMPOSE["services"], COMPOSE["configs"]


def default(text: str) -> str:
    """Returns the default of a variable in compose.yaml."""
    (found,) = re.findall(r"^\$\{\w+:-(.*)\}$", text)
    return found


def content(name: str):
    return yaml.safe_load(CONFIGS[name]["content"])


def test_the_server_has_the_image_of_this_version_and_valid_flags():
    assert default(SERVICES["server"]["image"]) == f"unmask-runtime:{VERSION}"
    config = parse(shlex.split(default(SERVICES["server"]["command"])), {})
    (published,) = SERVICES["server"]["ports"]
    assert published.endswith(f":{config.port}")
    assert f"http://127.0.0.1:{config.port}/ready" in SERVICES["server"]["healthcheck"]["test"][-1]


def test_ports_are_open_on_this_machine_only():
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert ports == ["127.0.0.1:8000:8000", "127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]


def test_prometheus_scrapes_the_server_and_grafana_reads_prometheus():
    (job,) = content("prometheus")["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"], "labels": {"pod": "server"}}]
    (source,) = content("datasource")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"]


def test_the_health_check_succeeds_only_if_a_server_is_ready():
    program, *arguments = SERVICES["server"]["healthcheck"]["test"][1:]
    assert program == "python"

    def status(url: str) -> int:
        command = [argument.replace("http://127.0.0.1:8000", url) for argument in arguments]
        assert command != arguments
        return subprocess.run([sys.executable, *command], stderr=subprocess.DEVNULL).returncode

    with serving("--device", "cpu") as server:
        assert status(server.url) == 0
        assert status(f"{server.url}/no-such-route") != 0
    assert status(server.url) != 0


def test_provisioning_files_are_in_grafanas_folders_and_have_its_fields():
    folders = {mount["source"]: Path(mount["target"]).parent for mount in SERVICES["grafana"]["configs"]}
    provisioning = Path("/etc/grafana/provisioning")
    assert folders["datasource"] == provisioning / "datasources"
    assert folders["dashboards"] == provisioning / "dashboards"
    sources, providers = content("datasource"), content("dashboards")
    assert sources.keys() == {"apiVersion", "datasources"}
    assert providers.keys() == {"apiVersion", "providers"}
    assert sources["apiVersion"] == providers["apiVersion"] == 1
    (source,), (provider,) = sources["datasources"], providers["providers"]
    assert source.keys() == {"name", "type", "url", "isDefault"}
    assert source["type"] == "prometheus"
    assert provider == {"name": "unmask", "type": "file", "options": {"path": "/etc/unmask"}}


def test_every_mounted_config_is_declared_and_the_dashboard_is_in_the_provided_folder():
    mounts = {
        config["source"]: config["target"] for service in SERVICES.values() for config in service.get("configs", ())
    }
    assert mounts.keys() == CONFIGS.keys()
    (provider,) = content("dashboards")["providers"]
    assert Path(mounts["dashboard"]).parent == Path(provider["options"]["path"])
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounts["dashboard"]
    assert ROOT / CONFIGS["dashboard"]["file"] == dashboard.DASHBOARD
