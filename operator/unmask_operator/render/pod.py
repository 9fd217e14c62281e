"""Renders the pod template. `container.py` renders its container."""

from dataclasses import dataclass

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.pod import CACHE_SIZE
from unmask_operator.objects import RESTARTED_AT, TEMPLATE_LABEL, Obj, digest, section
from unmask_operator.render import adapters, ca_bundle, container, devices, groups, model, model_cache
from unmask_operator.render.labels import (
    KEYS_FILE,
    MAIN,
    adapters_config,
    all_containers,
    engine_name,
    labels,
    main_container,
    selector,
)
from unmask_operator.render.merge import merge_template
from unmask_operator.render.route import ENGINE_LABEL
from unmask_operator.settings import Settings

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
GRACE = "terminationGracePeriodSeconds"
END_SECONDS = 10  # time for the process to exit after its last request


@dataclass(frozen=True)
class RenderedPod:
    """The resolved image and the pod template, in a group that of the leader and that of the workers."""

    image: str
    template: Obj
    worker: Obj | None = None


def render_pod(resource: DiffusionLMService, settings: Settings, restarted_at: str = "") -> RenderedPod:
    """Renders the pod template of `resource`.

    Args:
        resource: the parsed resource.
        settings: the operator's settings.
        restarted_at: last value of the restart annotation; "" without one.

    Raises:
        SpecError: podTemplate, extraArgs or the model's uri is invalid.
    """
    image = resource.spec.image or settings.runtime_image
    base = {"metadata": _metadata(resource, restarted_at), "spec": _spec(resource, settings, image, restarted_at)}
    patch = {"metadata": resource.spec.pod_template.metadata, "spec": _with_account(resource.spec.pod_template.spec)}
    template = merge_template(base, patch)
    container.limit_threads(main_container(template["spec"]), resource.spec.gpus_per_pod)
    if GRACE not in resource.spec.pod_template.spec:
        template["spec"][GRACE] = _grace_period(template["spec"])
    is_group = resource.spec.parallelism.nodes > 1
    marks = {**(groups.LEADER if is_group else {}), TEMPLATE_LABEL: digest(template)}
    labeled = {**template["metadata"], "labels": {**template["metadata"]["labels"], **marks}}
    template = {**template, "metadata": labeled}
    return RenderedPod(image, template, groups.worker_template(template) if is_group else None)


def pre_stop_seconds(container: Obj) -> int | None:
    """Returns how long the preStop hook of a container lasts: 0 without a hook, None if the length is unknown."""
    hook = section(container, "lifecycle", "preStop")  # the API server validates the podTemplate later
    seconds = section(hook, "sleep").get("seconds")
    return seconds if isinstance(seconds, int) else None if hook else 0


def _grace_period(spec: Obj) -> int:
    """Returns the grace period with the preStop hooks of podTemplate.

    The hooks of all containers start together. SIGTERM follows after the container's own one, and then the engine
    drains.
    """
    hooks = {one["name"]: pre_stop_seconds(one) or 0 for one in all_containers(spec)}
    return max(int(spec[GRACE]) + hooks[MAIN], *hooks.values())


def _with_account(patch: Obj) -> Obj:
    """Returns a spec of podTemplate with an explicit `serviceAccountName` if its alias or null changes it.

    `serviceAccount` is a deprecated alias, from which the API server restores a removed or empty name.
    """
    name, alias = patch.get("serviceAccountName"), patch.get("serviceAccount")
    if alias in (None, name) and (name or "serviceAccountName" not in patch):
        return patch
    spec = {member: value for member, value in patch.items() if member != "serviceAccount"}
    return {**spec, "serviceAccountName": name or alias or "default"}


def _metadata(resource: DiffusionLMService, restarted_at: str) -> Obj:
    marks = {RESTARTED_AT: restarted_at} if restarted_at else {}
    # cluster-autoscaler does not remove a node that runs a pod with emptyDirs, unless the pod has this annotation.
    own = {"kubectl.kubernetes.io/default-container": MAIN, SAFE_TO_EVICT: "true"}
    engine = {} if resource.spec.inference_pool is None else ENGINE_LABEL
    return {
        "labels": {**resource.spec.common_labels, **labels(resource.name), **engine},
        "annotations": {**own, **resource.spec.common_annotations, **marks},
    }


def _spec(resource: DiffusionLMService, settings: Settings, image: str, restarted_at: str) -> Obj:
    main = container.main(resource, settings, image, restarted_at)
    spec: Obj = {
        "serviceAccountName": engine_name(resource.name),
        "automountServiceAccountToken": False,  # the engine does not access the API server
        "enableServiceLinks": False,  # a Service called "unmask" would inject UNMASK_PORT, which the runtime reads
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        GRACE: resource.spec.drain_delay + resource.spec.drain_timeout_seconds + END_SECONDS,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(resource.name)},
                "matchLabelKeys": ["pod-template-hash"],  # pods that a rollout replaces do not count
            }
        ],
        "containers": [main],
        "volumes": _volumes(resource, settings),
        **_scheduling(resource, settings),
    }
    resources = resource.spec.resources.model_dump(exclude_defaults=True)
    if before := ca_bundle.init_containers(main, settings, resources):
        spec["initContainers"] = before
    if claims := devices.pod_claims(resource):
        spec["resourceClaims"] = claims
    secrets = dict.fromkeys((*settings.image_pull_secrets, *(s.name for s in resource.spec.image_pull_secrets)))
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    return spec


def _scheduling(resource: DiffusionLMService, settings: Settings) -> Obj:
    """Returns the scheduling settings of the chart, for all engines and for engines with GPUs; without empty values."""
    has_gpu = resource.spec.gpu is not None
    members: Obj = {
        "nodeSelector": {**settings.engine_node_selector, **(settings.gpu_node_selector if has_gpu else {})},
        "tolerations": [dict(toleration) for toleration in settings.gpu_tolerations] if has_gpu else [],
    }
    return {member: value for member, value in members.items() if value}


def _volumes(resource: DiffusionLMService, settings: Settings) -> list[Obj]:
    size, shared = resource.spec.model_cache.empty_dir.size_limit, resource.spec.shared_memory_size
    if shared is None:
        shared = "8Gi" if resource.spec.parallelism.tensor > 1 else "1Gi"
    volumes: list[Obj] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "compile-cache", "emptyDir": {}},
        {"name": "model-cache", "emptyDir": {"sizeLimit": CACHE_SIZE if size is None else size}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shared}},
    ]
    for volume, claim in model.volumes(resource.spec).items():
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
    for volume, reference in model.images(resource.spec).items():
        image = {"reference": reference, "pullPolicy": resource.spec.image_pull_policy}
        volumes.append({"name": volume, "image": image})
    if cache := model_cache.claim_of(resource.spec, resource.name):
        volumes.append({"name": model_cache.VOLUME, "persistentVolumeClaim": {"claimName": cache}})
    if adapters.are_followed(resource.spec):
        volumes.append({"name": adapters.VOLUME, "configMap": {"name": adapters_config(resource.name)}})
    if auth := resource.spec.auth:
        ref = auth.api_key_secret_ref
        secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": KEYS_FILE}]}
        volumes.append({"name": "api-keys", "secret": secret})
    return volumes + ca_bundle.volumes(settings)
