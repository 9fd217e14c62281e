"""CEL validation rules across fields, part of the CustomResourceDefinition.

Only the API server evaluates them. It stores no object that violates a rule, so the operator does not check them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.strategy_rules import ANY_PAGE, OWN_STEP
from unmask_operator.api.autoscaling import Autoscaling
from unmask_operator.api.base import Section
from unmask_operator.api.engine import BATCHED, RESERVED, Engine
from unmask_operator.api.lora import Adapter, Lora
from unmask_operator.api.model_cache import ModelCache, ModelClaim
from unmask_operator.api.network import Peer, Route, Service
from unmask_operator.api.pod import Gpu, GpuClaim, Parallelism
from unmask_operator.api.spec import Model, PodDisruptionBudget, RolloutStrategy, Spec
from unmask_operator.objects import GROUP


@dataclass(frozen=True)
class Rule:
    """A validation rule of a section.

    Attributes:
        cel: expression over `self`; true if the section is valid.
        message: the error and the fix; completes "FIELD: ..." and has no full stop.
        field: field of the section (camelCase) that the message refers to; "" for the section itself.
    """

    cel: str
    message: str
    field: str = ""

    def schema(self) -> dict[str, str]:
        """Returns the entry of x-kubernetes-validations."""
        path = {"fieldPath": f".{self.field}"} if self.field else {}
        return {**path, "message": self.message, "rule": self.cel}


def _is_one(strategies: tuple[str, ...]) -> str:
    return f"(has(self.decodingStrategy) && self.decodingStrategy in [{', '.join(map(repr, strategies))}])"


def _gpu_rule(part: str) -> str:
    return (
        f"!has(self.resources) || !has(self.resources.{part}) || !self.resources.{part}.exists(n, "
        "n.startsWith('nvidia.com/') || n.startsWith('gpu.') || n.endsWith('/gpu') || "
        "(has(self.gpu) && has(self.gpu.resourceName) && n == self.gpu.resourceName))"
    )


# Keys set by the operator, kubectl or Kubernetes controllers. An entry that ends in "/" is a prefix.
RESERVED_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "pod-template-hash",
    "controller-revision-hash",
    f"{GROUP}/",
)
RESERVED_ANNOTATIONS = ("deployment.kubernetes.io/", "kubectl.kubernetes.io/", f"{GROUP}/")
# Key of a label or annotation: an optional DNS subdomain and a name.
METADATA_KEY = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _keys_rule(field: str, reserved: tuple[str, ...]) -> Rule:
    refused = [f"k.startsWith('{entry}')" if entry.endswith("/") else f"k == '{entry}'" for entry in reserved]
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, !({' || '.join(refused)}))",
        f"{', '.join(f'{entry}*' if entry.endswith('/') else entry for entry in reserved)} are set by the operator or "
        "by Kubernetes; remove them",
        field,
    )


def _names_rule(field: str) -> Rule:
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, k.matches('^{METADATA_KEY}$'))",
        f"{field} has a key that is not valid; use names such as team or example.com/team",
        field,
    )


_HUB = r"hf://[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*"
_CLAIM = r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*/?"
_IMAGE = (
    r"oci://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?"
)
_BUCKET = r"(s3|gs)://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+"
_URI = rf"^(demo://|{_HUB}|{_BUCKET}|{_CLAIM}|{_IMAGE})$"
_ADAPTER = rf"^(demo://[a-z0-9][a-z0-9_-]*|{_HUB}|{_CLAIM})$"
_TAGGED = r"^([^/@]+/)*[^/:@]+:[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_RESERVED_ARGUMENT = rf"^(-h|--({'|'.join(name.replace('-', '[-_]') for name in RESERVED)})(=.*)?)$"

_ONE_NODE = "!has(self.parallelism) || !has(self.parallelism.nodes) || self.parallelism.nodes == 1"

_PRIVATE_PATHS = " || ".join(f"p.startsWith('/{name}')" for name in ("metrics", "health", "ready", "startup"))

NAME = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
    "metadata.name must be at most 40 characters of a-z, 0-9 and -, start with a letter and not end with -, because "
    "the Service has the same name",
)

ADAPTER_NAMES = Rule(
    "!has(self.spec.lora) || !has(self.spec.lora.adapters) || !self.spec.lora.adapters.exists(a, "
    "a.name == (has(self.spec.model.name) ? self.spec.model.name : self.metadata.name))",
    "an adapter has the model's own name (model.name, or the resource's name without it); rename the adapter, so that "
    "requests can select it",
    "spec.lora.adapters",
)

OTHER_BACKENDS = Rule(
    "!has(self.spec.route) || !has(self.spec.route.backends) || "
    "!self.spec.route.backends.exists(b, b.service == self.metadata.name)",
    "lists other DiffusionLMServices; remove the resource's own name, and set route.weight for its part",
    "spec.route.backends",
)

RULES: Mapping[type[Section], tuple[Rule, ...]] = {
    Spec: (
        Rule(
            "has(self.gpu) || !has(self.parallelism) || "
            "((!has(self.parallelism.data) || self.parallelism.data == 1) && "
            "(!has(self.parallelism.tensor) || self.parallelism.tensor == 1))",
            "needs gpu, because a CPU pod runs one engine in one process; set gpu, or increase replicas instead",
            "parallelism",
        ),
        Rule(
            "!has(self.lora) || !has(self.lora.adapters) || self.lora.adapters.all(a, !a.uri.startsWith('pvc://') || "
            "(has(self.lora.claimNames) && a.uri.split('/')[2] in self.lora.claimNames) || "
            "(self.model.uri.startsWith('pvc://') && a.uri.split('/')[2] == self.model.uri.split('/')[2]))",
            "a pvc:// adapter lies on the model's own claim or on one in lora.claimNames; add its claim to them",
            "lora.adapters",
        ),
        Rule(
            "!has(self.model.tokenSecretRef) || self.model.uri.startsWith('hf://') || has(self.lora)",
            "only hf:// models and adapters are downloaded with a token; remove it",
            "model.tokenSecretRef",
        ),
        Rule(
            "has(self.gpu) || !has(self.engine) || !has(self.engine.gpuMemoryUtilization)",
            "needs gpu; set gpu or remove it",
            "engine.gpuMemoryUtilization",
        ),
        Rule(
            "has(self.gpu) || !has(self.engine) || !has(self.engine.attnImpl) || self.engine.attnImpl == 'Torch'",
            "Triton and TritonGrouped need gpu; set gpu or use Torch",
            "engine.attnImpl",
        ),
        Rule(
            "!has(self.model.family) || !(self.model.family in ['llada2dot1_mini', 'llada2dot1_flash']) || "
            "(has(self.engine) && has(self.engine.samplingMode) && self.engine.samplingMode == 'Edit')",
            "model.family llada2dot1_mini and llada2dot1_flash need Edit",
            "engine.samplingMode",
        ),
        Rule(
            f"({_gpu_rule('limits')}) && ({_gpu_rule('requests')})",
            "must not hold GPUs; set gpu and parallelism instead",
            "resources",
        ),
        Rule(
            "!has(self.autoscaling) || !has(self.autoscaling.zero) || !has(self.networkPolicy) || "
            "!has(self.networkPolicy.from) || size(self.networkPolicy.from) == 0",
            "must be empty with autoscaling.zero, because the activator forwards requests of every pod; use auth",
            "networkPolicy.from",
        ),
        Rule(
            "!has(self.autoscaling) || !has(self.autoscaling.zero) || !has(self.inferencePool)",
            "cannot be combined with autoscaling.zero, because a pool has only pods and not the activator; remove one",
            "inferencePool",
        ),
        Rule(
            "!has(self.gpu) || !has(self.gpu.resourceName) || !self.gpu.resourceName.contains('/mig-') || "
            "!has(self.parallelism) || ((!has(self.parallelism.data) || self.parallelism.data == 1) && "
            "(!has(self.parallelism.tensor) || self.parallelism.tensor == 1))",
            "must be 1 with a MIG slice in gpu.resourceName, because a process sees one slice only; choose a larger "
            "slice, or increase replicas",
            "parallelism",
        ),
        Rule(
            "!has(self.image) || self.image.contains('@sha256:') || "
            f"(self.image.matches('{_TAGGED}') && !self.image.endsWith(':latest'))",
            "needs a tag other than latest, or a digest, so that all pods run the same image",
            "image",
        ),
        Rule(
            "!has(self.modelCache) || !has(self.modelCache.pvc) || self.model.uri.matches('^(hf|s3|gs)://')",
            "only an hf://, s3:// or gs:// model is downloaded; remove it",
            "modelCache.pvc",
        ),
        Rule(
            "!self.model.uri.matches('^(s3|gs)://') || (has(self.modelCache) && has(self.modelCache.pvc))",
            "an s3:// or gs:// model is downloaded to a claim only; set modelCache.pvc",
            "modelCache",
        ),
        Rule(
            f"{_ONE_NODE} || !self.model.uri.startsWith('hf://') || has(self.model.revision) || "
            "(has(self.modelCache) && has(self.modelCache.pvc))",
            "must be set with parallelism.nodes, for the same files in all pods; set it, or modelCache.pvc",
            "model.revision",
        ),
        Rule(
            f"{_ONE_NODE} || !has(self.modelCache) || !has(self.modelCache.pvc) || "
            "!has(self.modelCache.pvc.accessModes) || self.modelCache.pvc.accessModes.exists(m, m.endsWith('Many'))",
            "needs ReadWriteMany with parallelism.nodes, because pods of several nodes read the claim",
            "modelCache.pvc.accessModes",
        ),
        Rule(
            f"({_ONE_NODE}) == ({_ONE_NODE.replace('self.', 'oldSelf.')})",
            "cannot be changed between 1 and more; create a second service, and delete this one",
            "parallelism.nodes",
        ),
        _keys_rule("commonLabels", RESERVED_LABELS),
        _names_rule("commonLabels"),
        _keys_rule("commonAnnotations", RESERVED_ANNOTATIONS),
        _names_rule("commonAnnotations"),
    ),
    Model: (
        Rule(
            f"self.uri.matches('{_URI}')",
            "must be demo://, hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, pvc://CLAIM/PATH or "
            "oci://REGISTRY/REPOSITORY:TAG or @DIGEST; set a revision in model.revision",
            "uri",
        ),
        Rule(
            "!self.uri.startsWith('oci://') || self.uri.contains('@sha256:') || "
            f"(self.uri.substring(6).matches('{_TAGGED}') && !self.uri.endsWith(':latest'))",
            "names no version of the image; add a tag that is not latest, or a digest, for one model in all pods",
            "uri",
        ),
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "only a model of the hub (hf://) has revisions; remove it",
            "revision",
        ),
        Rule(
            "!has(self.credentialsSecretRef) || self.uri.matches('^(s3|gs)://')",
            "only s3:// and gs:// models are downloaded with these credentials; remove it",
            "credentialsSecretRef",
        ),
    ),
    ModelCache: (
        Rule("!has(self.emptyDir) || !has(self.pvc)", "emptyDir and pvc exclude each other; remove one"),
        Rule("!has(self.fetch) || has(self.pvc)", "only with pvc a Job downloads the model; remove it", "fetch"),
    ),
    ModelClaim: (
        Rule("has(self.claimName) != has(self.size)", "needs claimName or size, and not both"),
        Rule(
            "has(self.size) || (!has(self.storageClassName) && !has(self.accessModes))",
            "storageClassName and accessModes are of a claim that the operator creates; set size or remove them",
        ),
        Rule("!has(self.size) || quantity(string(self.size)).isGreaterThan(quantity('0'))", "must be above 0", "size"),
        Rule(
            "!has(self.accessModes) || self.accessModes.exists(m, m != 'ReadOnlyMany')",
            "needs ReadWriteMany or ReadWriteOnce, because the download writes to the claim",
            "accessModes",
        ),
        Rule(
            "!has(self.size) || !has(oldSelf.size) || "
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "a claim only grows; use a larger size, or a claim of your own in claimName",
            "size",
        ),
        *(
            Rule(
                f"!has(self.size) || !has(oldSelf.size) || (has(self.{field}) == has(oldSelf.{field}) && "
                f"(!has(self.{field}) || self.{field} == oldSelf.{field}))",
                f"{field} of a claim is immutable; use a claim of your own in claimName",
                field,
            )
            for field in ("storageClassName", "accessModes")
        ),
    ),
    Engine: (
        Rule(
            f"{_is_one(ANY_PAGE)} || !has(self.blockSize) || !has(self.pageSize) || "
            "self.blockSize % self.pageSize == 0 || "
            "self.pageSize % self.blockSize == 0",
            "must be a multiple or a divisor of blockSize",
            "pageSize",
        ),
        Rule(
            f"{_is_one(OWN_STEP)} || !has(self.blockSize) || "
            "self.blockSize * ((has(self.bufferSize) ? self.bufferSize : 1) + 1) <= "
            f"(has(self.maxNumBatchedTokens) ? self.maxNumBatchedTokens : {BATCHED})",
            f"must be at least (bufferSize + 1) * blockSize, the tokens of a request's step; its default is {BATCHED}",
            "maxNumBatchedTokens",
        ),
        Rule(
            "!has(self.decodingStrategy) || self.decodingStrategy != 'Dmax' || "
            "(has(self.samplingMode) && self.samplingMode == 'Edit')",
            "must be Edit with decodingStrategy Dmax",
            "samplingMode",
        ),
        Rule(
            "!has(self.samplingMode) || self.samplingMode != 'Edit' || !has(self.thresholds) || "
            "!has(self.thresholds.remask) || self.thresholds.remask == 0.0",
            "has no effect with samplingMode Edit; remove one of them",
            "thresholds.remask",
        ),
        Rule(
            f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('{_RESERVED_ARGUMENT}'))",
            f"the operator itself sets or refuses these flags: {', '.join(RESERVED)}; use the spec",
            "extraArgs",
        ),
        Rule(
            "!has(self.extraArgs) || !self.extraArgs.exists(a, a.contains('$('))",
            "Kubernetes would replace $(NAME) by the value of a variable, possibly a secret; write the value itself",
            "extraArgs",
        ),
    ),
    Parallelism: (
        Rule(
            "!has(self.expert) || self.expert == 1 || (has(self.tensor) && self.expert == self.tensor)",
            "must be 1 (every expert is sharded across the GPUs) or equal to tensor (each GPU holds complete experts)",
            "expert",
        ),
        Rule(
            "!has(self.nodes) || (has(self.tensor) ? self.tensor : 1) % self.nodes == 0",
            "must divide tensor, the number of GPUs of an engine",
            "nodes",
        ),
        Rule(
            "!has(self.nodes) || self.nodes == 1 || !has(self.data) || self.data == 1",
            "must be 1 with nodes above 1, because such an engine has its own server; increase replicas",
            "data",
        ),
        Rule(
            "!has(self.topologyKey) || (has(self.nodes) && self.nodes > 1)",
            "places the pods of a group; set nodes above 1, or remove it",
            "topologyKey",
        ),
    ),
    Gpu: (
        Rule(
            "[has(self.resourceName), has(self.deviceClassName), has(self.resourceClaims)].filter(x, x).size() <= 1",
            "resourceName, deviceClassName and resourceClaims exclude each other; keep one",
        ),
    ),
    GpuClaim: (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "needs either resourceClaimName or resourceClaimTemplateName",
        ),
    ),
    Adapter: (
        Rule(
            f"self.uri.matches('{_ADAPTER}')",
            "must be demo://NAME, hf://ORG/NAME or pvc://CLAIM/PATH; set a revision in the adapter's revision field",
            "uri",
        ),
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "only an adapter of the hub (hf://) has revisions; remove it",
            "revision",
        ),
    ),
    Lora: (
        Rule(
            "!has(self.preMerge) || !self.preMerge || (has(self.adapters) && size(self.adapters) == 1)",
            "needs exactly one adapter with preMerge, the one to merge",
            "adapters",
        ),
        Rule(
            "!has(self.preMerge) || !self.preMerge || (!has(self.maxAdapters) && !has(self.maxRank))",
            "excludes maxAdapters and maxRank, which apply to adapters that requests select; remove them",
            "preMerge",
        ),
    ),
    Autoscaling: (
        Rule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "must not be below minReplicas",
            "maxReplicas",
        ),
        Rule(
            "!has(self.pollingIntervalSeconds) || !has(self.provider) || self.provider != 'HPA'",
            "only the providers Builtin and KEDA poll; remove it",
            "pollingIntervalSeconds",
        ),
        Rule(
            "!has(self.keda) || (has(self.provider) && self.provider == 'KEDA')",
            "has an effect only with provider KEDA; remove it",
            "keda",
        ),
        Rule(
            "!has(self.minReplicas) || self.minReplicas > 0 || "
            "has(self.zero) || (has(self.keda) && has(self.keda.triggers) && size(self.keda.triggers) > 0)",
            "must be at least 1 without zero or keda.triggers, because nothing would wake the service",
            "minReplicas",
        ),
        Rule(
            "!has(self.zero) || ((!has(self.provider) || self.provider == 'Builtin') && "
            "has(self.minReplicas) && self.minReplicas == 0)",
            "needs provider Builtin and minReplicas 0; set them or remove it",
            "zero",
        ),
    ),
    Service: (
        Rule(
            "(!has(self.loadBalancerClass) && !has(self.loadBalancerSourceRanges)) || "
            "(has(self.type) && self.type == 'LoadBalancer')",
            "must be LoadBalancer with loadBalancerClass or loadBalancerSourceRanges",
            "type",
        ),
        Rule(
            "!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')",
            "needs type NodePort or LoadBalancer, which take traffic from outside the cluster; set type or remove it",
            "externalTrafficPolicy",
        ),
        Rule(
            "!has(self.ipFamilies) || size(self.ipFamilies) < 2 || "
            "(has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack')",
            "must be PreferDualStack or RequireDualStack with two ipFamilies",
            "ipFamilyPolicy",
        ),
        Rule(
            "!has(self.ipFamilies) || size(self.ipFamilies) < 2 || self.ipFamilies[0] != self.ipFamilies[1]",
            "must not name a family twice",
            "ipFamilies",
        ),
    ),
    Peer: (
        Rule(
            "has(self.ipBlock) ? !has(self.podSelector) && !has(self.namespaceSelector) : "
            "has(self.podSelector) || has(self.namespaceSelector)",
            "needs podSelector, namespaceSelector or both, or else ipBlock alone",
        ),
    ),
    Route: (
        Rule(
            f"!has(self.paths) || !self.paths.exists(p, {_PRIVATE_PATHS})",
            "must not begin with /metrics, /health, /ready or /startup, which are for the cluster; remove the path",
            "paths",
        ),
    ),
    RolloutStrategy: (
        Rule(
            "!has(self.maxSurge) || (self.maxSurge != 0 && self.maxSurge != '0%') || "
            "(has(self.maxUnavailable) && self.maxUnavailable != 0 && self.maxUnavailable != '0%')",
            "maxSurge and maxUnavailable must not both be 0, because then no pod can be replaced; increase one of them",
        ),
    ),
    PodDisruptionBudget: (
        Rule(
            "!has(self.minAvailable) || !has(self.maxUnavailable)",
            "minAvailable and maxUnavailable exclude each other; remove one",
        ),
    ),
}
