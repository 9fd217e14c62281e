"""Renders the engine's container: image, arguments, variables, probes, resources and mounts."""

import math

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.pod import CACHE_SIZE, LivenessProbe, ReadinessProbe, StartupProbe
from unmask_operator.objects import Obj, quantity
from unmask_operator.render import adapters, ca_bundle, devices, groups, model, model_cache
from unmask_operator.render.arguments import engine_arguments
from unmask_operator.render.labels import KEYS_MOUNT, MAIN, PORT, PORT_NAME
from unmask_operator.render.model import variable
from unmask_operator.settings import Settings

_COMPILE_CACHE = "/var/cache/unmask"
_MODEL_CACHE = "/var/cache/models"
_DISK = "ephemeral-storage"
THREADS = "OMP_NUM_THREADS"
# Number of threads: the CPU limit, rounded up, or the node's cores without a limit. By default, torch starts one thread
# per core of the node, which slows down all pods on it.
_CPU_LIMIT = {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}


def main(resource: DiffusionLMService, settings: Settings, image: str, restarted_at: str) -> Obj:
    spec = resource.spec
    return {
        "name": MAIN,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "args": engine_arguments(resource, settings),
        "env": _env(resource, settings, restarted_at),
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(resource),
        "startupProbe": _probe("/startup", spec.startup_probe),
        "readinessProbe": _probe("/ready", spec.readiness_probe),
        "livenessProbe": _probe("/health", spec.liveness_probe),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the runtime's last log line has the cause of its exit
        "volumeMounts": _mounts(resource, settings),
    }


def _env(resource: DiffusionLMService, settings: Settings, restarted_at: str) -> list[Obj]:
    """Returns the environment. Variables that the engine requires override those of the chart.

    Each name occurs once: server-side apply rejects a list with two entries of one name.
    """
    values = {
        **settings.engine_env,
        "HOME": "/tmp",
        "XDG_CACHE_HOME": _COMPILE_CACHE,
        "TRITON_CACHE_DIR": f"{_COMPILE_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{_COMPILE_CACHE}/inductor",
        "HF_HOME": _MODEL_CACHE,
        **ca_bundle.environment(settings),
    }
    own: list[Obj] = []
    if offline := model_cache.is_offline(resource.spec):
        values["HF_HUB_OFFLINE"] = "1"
    if THREADS not in values:
        own.append({"name": THREADS, "valueFrom": _CPU_LIMIT})
    if (token := resource.spec.model.token_secret_ref) and not offline:
        own.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    own += variable(resource, restarted_at)
    own += [groups.POD_IP] if resource.spec.parallelism.nodes > 1 else []
    names = sorted(values.keys() - {entry["name"] for entry in own})
    return [*({"name": name, "value": values[name]} for name in names), *own]


def limit_threads(main: Obj, ranks: int) -> None:
    """Sets the threads of each rank of a GPU service to its part of the CPU limit, else of the CPU request.

    Without a limit the API server reports the cores of the node, which each rank would use.

    Args:
        main: the engine's container after the merge of podTemplate.
        ranks: processes of a pod; 0 without GPUs.
    """
    resources = main.get("resources") or {}
    limit, request = (quantity((resources.get(kind) or {}).get("cpu")) for kind in ("limits", "requests"))
    cpu = limit or request
    if not ranks or not cpu or (limit and ranks == 1):
        return
    threads = {"name": THREADS, "value": str(max(1, math.ceil(cpu / ranks)))}
    rendered = {"name": THREADS, "valueFrom": _CPU_LIMIT}
    main["env"] = [threads if entry == rendered else entry for entry in main.get("env") or ()]


def _resources(resource: DiffusionLMService) -> Obj:
    limits, requests = dict(resource.spec.resources.limits), dict(resource.spec.resources.requests)
    if resource.spec.gpu and (name := resource.spec.gpu.extended_resource):
        limits[name] = resource.spec.gpus_per_pod
    size = resource.spec.model_cache.empty_dir.size_limit
    # older schemas stored the default in the object, so it is not an explicit request
    if size not in (None, CACHE_SIZE) and _DISK not in {*limits, *requests}:
        requests[_DISK] = size
    claims = [{"name": claim["name"]} for claim in devices.pod_claims(resource)]
    members = (("limits", limits), ("requests", requests), ("claims", claims))
    return {name: amounts for name, amounts in members if amounts}


def _probe(path: str, probe: StartupProbe | ReadinessProbe | LivenessProbe) -> Obj:
    return {"httpGet": {"path": path, "port": PORT_NAME}, **probe.model_dump(by_alias=True)}


def _mounts(resource: DiffusionLMService, settings: Settings) -> list[Obj]:
    mounts: list[Obj] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "compile-cache", "mountPath": _COMPILE_CACHE},
        {"name": "model-cache", "mountPath": _MODEL_CACHE},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    read_only = model.mounts(resource.spec)
    if resource.spec.model_cache.pvc:
        read_only[model_cache.MOUNT] = model_cache.VOLUME
    if adapters.are_followed(resource.spec):  # both as directories: the kubelet does not update subPath mounts
        read_only[adapters.MOUNT] = adapters.VOLUME
    if resource.spec.auth:
        read_only[KEYS_MOUNT] = "api-keys"
    mounts += [{"name": volume, "mountPath": path, "readOnly": True} for path, volume in read_only.items()]
    return mounts + ca_bundle.mounts(settings)
