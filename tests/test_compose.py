"""compose.yaml runs the image of this version, and Prometheus and Grafana find what they need."""

import re
import shlex
from pathlib import Path

import yaml

from runtime.config import parse
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
    parse(shlex.split(default(SERVICES["server"]["command"])), {})


def test_ports_are_open_on_this_machine_only():
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert ports == ["127.0.0.1:8000:8000", "127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]


def test_prometheus_scrapes_the_server_and_grafana_reads_prometheus():
    (job,) = content("prometheus")["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}]
    (source,) = content("datasource")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"]


def test_every_mounted_config_is_declared_and_the_dashboard_is_in_the_provided_folder():
    mounts = {
        config["source"]: config["target"] for service in SERVICES.values() for config in service.get("configs", ())
    }
    assert mounts.keys() == CONFIGS.keys()
    (provider,) = content("dashboards")["providers"]
    assert Path(mounts["dashboard"]).parent == Path(provider["options"]["path"])
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounts["dashboard"]
    assert ROOT / CONFIGS["dashboard"]["file"] == dashboard.DASHBOARD
