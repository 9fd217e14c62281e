"""The copy of a model that all pods of a resource mount: where it is, its claim, and the Job that downloads it.

`runtime/weights/snapshots.py` has the layout of the claim.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from unmask_operator.api import DiffusionLMService, Spec
from unmask_operator.api.model_cache import DEFAULT_MODES
from unmask_operator.kinds import CLAIMS, JOBS
from unmask_operator.objects import FETCH_LABEL, SERVICE_LABEL, TEMPLATE_LABEL, Obj, digest
from unmask_operator.render import ca_bundle
from unmask_operator.render.labels import MAIN, child, claim_name, fetch_name, labels
from unmask_operator.settings import Settings

FORMAT = 1  # of the claim's layout
VOLUME = "models"
MOUNT = "/mnt/models"
CONTAINER = "fetch"
INPUTS = "serving.unmask.dev/inputs"  # annotation of a Job: digest of its spec, and the capacity of the claim
BACKOFF_LIMIT = 6
USELESS = 2  # exit code after which another attempt would fail too
_REQUESTS = {"cpu": "1", "memory": "2Gi"}
_IN_TEMPLATE = re.compile(rf"--model={MOUNT}/(?:.*/)?([0-9a-f]{{16}}/[0-9a-f]{{40}})")
# Members of the engine's pods that decide where a pod runs, and as whom.
_COPIED = (
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "imagePullSecrets"),
    *("nodeSelector", "tolerations", "affinity", "runtimeClassName", "priorityClassName", "schedulerName"),
    *("hostAliases", "dnsConfig", "dnsPolicy"),
)
# Variables of the engine that the download does not have.
_OF_ENGINE = {
    *("OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN"),
    *("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
}


def key(uri: str) -> str:
    """Returns the directory of a repository in a claim."""
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


def claim_of(spec: Spec, name: str) -> str | None:
    """Returns the name of the claim with the model of the resource `name`; None without one."""
    pvc = spec.model_cache.pvc
    return None if pvc is None else pvc.claim_name or claim_name(name)


def model(resource: DiffusionLMService) -> str | None:
    """Returns the value of ``--model``; None for a model that is not in a claim of modelCache."""
    pvc = resource.spec.model_cache.pvc
    if pvc is None:
        return None
    return "/".join(filter(None, (MOUNT, pvc.sub_path, key(resource.spec.model.uri), resource.commit)))


def commit_in(template: Mapping[str, Any]) -> str:
    """Returns the commit of the copy that a pod template names; "" without one."""
    return snapshot_in(template).rpartition("/")[2]


def snapshot_in(template: Mapping[str, Any]) -> str:
    """Returns KEY/COMMIT of the copy that a pod template names; "" without one."""
    for container in template["spec"]["containers"]:
        for argument in container.get("args") or () if container["name"] == MAIN else ():
            if found := _IN_TEMPLATE.fullmatch(argument):
                return found[1]
    return ""


def is_offline(spec: Spec) -> bool:
    """Returns whether the engine loads nothing from the hub. Adapters of the hub may be added without a restart."""
    return spec.model_cache.pvc is not None and spec.lora is None


def source(model: Mapping[str, Any], restarted_at: str) -> str:
    """Returns a digest of what is downloaded: the repository, its revision and the last restart.

    Args:
        model: spec.model as in the resource.
        restarted_at: last value of the restart annotation.
    """
    return digest({"uri": model.get("uri"), "revision": model.get("revision"), "restarted_at": restarted_at})


def claim(resource: DiffusionLMService) -> Obj | None:
    """Renders the claim; None if the spec has none or names one."""
    pvc = resource.spec.model_cache.pvc
    if pvc is None or pvc.size is None:
        return None
    spec: Obj = {
        "accessModes": list(pvc.access_modes or DEFAULT_MODES),
        "resources": {"requests": {"storage": pvc.size}},
    }
    if pvc.storage_class_name is not None:
        spec["storageClassName"] = pvc.storage_class_name
    return child(resource, CLAIMS, claim_name(resource.name), spec=spec)


def job_name(resource: DiffusionLMService, source: str, claim_uid: str) -> str:
    """Returns the name of the Job that downloads a source to a claim."""
    return fetch_name(resource.name, digest({"source": source, "claim": claim_uid, "format": FORMAT})[:8])


def job(
    resource: DiffusionLMService, settings: Settings, name: str, template: Obj, revision: str, keep: Sequence[str]
) -> Obj:
    """Renders the Job that downloads the model. Its pod runs where the engine's pods do, without their GPUs.

    Args:
        resource: the parsed resource.
        settings: the operator's settings.
        name: of the Job.
        template: the engine's pod template.
        revision: what is downloaded; "": the main branch.
        keep: KEY/COMMIT of the copies that stay in a claim of the operator's own.
    """
    pvc, fetch = resource.spec.model_cache.pvc, resource.spec.model_cache.fetch
    assert pvc is not None
    made = child(resource, JOBS, name)
    pod = _pod(resource, settings, template)
    (container,) = pod["spec"]["containers"]
    uri = resource.spec.model.uri + (f"@{revision}" if revision else "")
    to = "/".join(filter(None, (MOUNT, pvc.sub_path)))
    container["args"] = [uri, f"--to={to}", "--writer=$(JOB_UID)", "--result=/dev/termination-log"]
    made["spec"] = {
        "backoffLimit": BACKOFF_LIMIT,
        "activeDeadlineSeconds": fetch.timeout_seconds,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [USELESS]},
                },
            ]
        },
        "template": pod,
    }
    made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), INPUTS: digest(made["spec"])}
    if pvc.claim_name is None:
        container["args"] = [*container["args"], "--keep", *keep]
    return made


def _pod(resource: DiffusionLMService, settings: Settings, template: Obj) -> Obj:
    metadata, engine = template["metadata"], template["spec"]
    main = next(one for one in engine["containers"] if one["name"] == MAIN)
    resources = resource.spec.model_cache.fetch.resources.model_dump(exclude_defaults=True)
    resources["requests"] = {**_REQUESTS, **resources.get("limits", {}), **resources.get("requests", {})}
    container = {
        "name": CONTAINER,
        **{
            member: main[member]
            for member in ("image", "imagePullPolicy", "securityContext", "envFrom")
            if member in main
        },
        **_credentials(resource, main),
        "command": ["python", "-m", "runtime.fetch"],
        "env": _env(resource, main),
        "resources": resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": VOLUME, "mountPath": MOUNT},
            *ca_bundle.mounts(settings),
        ],
    }
    claim = {"claimName": claim_of(resource.spec, resource.name)}
    spec: Obj = {
        "restartPolicy": "Never",
        **{member: engine[member] for member in _COPIED if member in engine},
        "securityContext": {**engine.get("securityContext", {}), "fsGroupChangePolicy": "OnRootMismatch"},
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": VOLUME, "persistentVolumeClaim": claim},
            *ca_bundle.volumes(settings),
        ],
    }
    if before := ca_bundle.init_containers(container, settings, resources):
        spec["initContainers"] = before
    # Without the service label: the pod is none of the Service, the Deployment or the NetworkPolicy.
    own = {**metadata["labels"], **labels(resource.name), "app.kubernetes.io/component": "fetch"}
    own = {name: value for name, value in own.items() if name not in (SERVICE_LABEL, TEMPLATE_LABEL)}
    annotations = {**metadata.get("annotations", {}), "kubectl.kubernetes.io/default-container": CONTAINER}
    return {"metadata": {"labels": {**own, FETCH_LABEL: resource.name}, "annotations": annotations}, "spec": spec}


def _credentials(resource: DiffusionLMService, main: Obj) -> Obj:
    """Returns envFrom with the Secret of an object store; {} without one."""
    secret = resource.spec.model.credentials_secret_ref
    return {"envFrom": [*(main.get("envFrom") or ()), {"secretRef": {"name": secret.name}}]} if secret else {}


def _env(resource: DiffusionLMService, main: Obj) -> list[Obj]:
    uid = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    own: list[Obj] = [{"name": "JOB_UID", "valueFrom": uid}, {"name": "HF_HOME", "value": "/tmp/huggingface"}]
    if token := resource.spec.model.token_secret_ref:
        own.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    return [*own, *(entry for entry in main.get("env") or () if entry["name"] not in _OF_ENGINE)]
