"""What engines trust where the chart names a ConfigMap of authorities: the public roots and those, in one file.

Everything that speaks TLS in an engine reads SSL_CERT_FILE or REQUESTS_CA_BUNDLE, and trusts what is in there alone. So
an init container, of the engine's own image, whatever its version, writes one file of both before the engine starts.
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
    """Of the engine."""
    return dict.fromkeys(VARIABLES, _BUNDLE) if settings.ca_config_map else {}


def mounts(settings: Settings) -> list[Obj]:
    """Of the engine."""
    return [{"name": "trust", "mountPath": _TRUST, "readOnly": True}] if settings.ca_config_map else []


def volumes(settings: Settings) -> list[Obj]:
    """A ConfigMap without the key is told by the kubelet, before anything starts."""
    if not settings.ca_config_map:
        return []
    key = {"key": "ca.crt", "path": "ca.crt"}
    return [
        {"name": "ca", "configMap": {"name": settings.ca_config_map, "items": [key]}},
        {"name": "trust", "emptyDir": {}},
    ]


def init_containers(engine: Obj, settings: Settings, resources: Obj) -> list[Obj]:
    """`engine` lends what is the same: image, security context. `resources`: the spec's own, for a quota may ask."""
    if not settings.ca_config_map:
        return []
    lent = ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy")
    return [
        {
            "name": INIT_CONTAINER,
            **{member: engine[member] for member in lent},
            "command": ["python", "-c", _WRITE, f"{_OWN}/ca.crt", _BUNDLE, settings.ca_config_map],
            "resources": resources,
            "volumeMounts": [
                {"name": "ca", "mountPath": _OWN, "readOnly": True},
                {"name": "trust", "mountPath": _TRUST},
            ],
        }
    ]
