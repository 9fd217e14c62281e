"""CA bundle of engines if the chart sets a ConfigMap of CA certificates: public roots and these certificates.

TLS clients of the engine read SSL_CERT_FILE or REQUESTS_CA_BUNDLE and trust only the certificates in that file. An init
container with the engine's image therefore writes both sets of certificates to one file before the engine starts.
"""

from unmask_operator.objects import Obj
from unmask_operator.settings import Settings

INIT_CONTAINER = "trust"
VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_OWN, _TRUST = "/etc/unmask/ca", "/etc/unmask/trust"
_BUNDLE = f"{_TRUST}/bundle.crt"
_WRITE = """
import pathlib, ssl, sys
import certifi
own, bundle, name = sys.argv[1:]
try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(own)
except ssl.SSLError as error:
    sys.exit(f"error: ca.crt of the ConfigMap {name} (engine.caConfigMap of the chart) is no PEM certificate: {error}")
both = (pathlib.Path(path).read_bytes() for path in (certifi.where(), own))
pathlib.Path(bundle).write_bytes(b"\\n".join(both))
"""


def environment(settings: Settings) -> dict[str, str]:
    """Returns the environment variables of the engine's container."""
    return dict.fromkeys(VARIABLES, _BUNDLE) if settings.ca_config_map else {}


def mounts(settings: Settings) -> list[Obj]:
    """Returns the volume mounts of the engine's container."""
    return [{"name": "trust", "mountPath": _TRUST, "readOnly": True}] if settings.ca_config_map else []


def volumes(settings: Settings) -> list[Obj]:
    """Returns the volumes of the pod. The kubelet reports a ConfigMap without the key and starts no container."""
    if not settings.ca_config_map:
        return []
    key = {"key": "ca.crt", "path": "ca.crt"}
    return [
        {"name": "ca", "configMap": {"name": settings.ca_config_map, "items": [key]}},
        {"name": "trust", "emptyDir": {}},
    ]


def init_containers(engine: Obj, settings: Settings, resources: Obj) -> list[Obj]:
    """Returns the init container.

    Args:
        engine: the engine's container, whose image and security settings are copied.
        settings: the operator's settings.
        resources: of the container, since a ResourceQuota may require them.
    """
    if not settings.ca_config_map:
        return []
    copied = ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy")
    return [
        {
            "name": INIT_CONTAINER,
            **{member: engine[member] for member in copied},
            "command": ["python", "-c", _WRITE, f"{_OWN}/ca.crt", _BUNDLE, settings.ca_config_map],
            "resources": resources,
            "volumeMounts": [
                {"name": "ca", "mountPath": _OWN, "readOnly": True},
                {"name": "trust", "mountPath": _TRUST},
            ],
        }
    ]
