"""A resource that each rule of the schema accepts and one that it rejects, as data.

`accept` and `reject` are changes to the spec of the minimal resource (None removes a field); `name` replaces its name.
`message` is part of the error message. For the schema's plain bounds there are only cases that are rejected.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.operator.samples import resource
from tools.rules import RESERVED_ANNOTATIONS, RESERVED_LABELS

Spec = dict[str, Any]


@dataclass(frozen=True)
class Case:
    message: str
    accept: Spec
    reject: Spec
    names: tuple[str, str] = field(default=("accept", "reject"))


def changed(change: Spec, name: str = "demo") -> Spec:
    """Returns the minimal resource with a change."""
    spec = {**resource()["spec"], **change}
    return {**resource(name), "spec": {key: value for key, value in spec.items() if value is not None}}


DEMO = {"uri": "demo://"}
HUB = {"uri": "hf://org/name"}
BUCKET = {"uri": "s3://bucket/org/name"}
HUB_CACHE = {"model": HUB}
TOKEN = {"name": "hub", "key": "token"}
MIG = {"resourceName": "nvidia.com/mig-3g.40gb"}
CLAIM = {"name": "gpus", "resourceClaimTemplateName": "a"}
LIMITS = {"cpu": "2", "memory": "4Gi", "nvidia.com/mig-1g.5gb": 1}
SCALED = {"maxReplicas": 3, "targets": {"queuedRequestsPerReplica": 4}}


def engine(**fields: Any) -> Spec:
    return {"engine": fields}


def scaling(**fields: Any) -> Spec:
    return {"autoscaling": {**SCALED, **fields}}


def peer(**fields: Any) -> Spec:
    return {"networkPolicy": {"from": [fields]}}


def adapters(*changes: Spec, **fields: Any) -> Spec:
    listed = [{"name": "a", "uri": "demo://roman", **change} for change in changes]
    return {"lora": {**fields, "adapters": listed}}


def route(**fields: Any) -> Spec:
    return {"route": {"parentRefs": [{"name": "public", "namespace": "infra"}], **fields}}


def reserved(key: str) -> str:
    """Returns a key that an entry of the reserved keys, or a prefix of them, covers."""
    return f"{key}x" if key.endswith("/") else key


def cached(model: Spec | None = None, **fields: Any) -> Spec:
    return {"model": model or HUB, "modelCache": {"pvc": fields}}


def nodes(count: int, **fields: Any) -> Spec:
    return {"gpu": {}, "parallelism": {"tensor": 2, "nodes": count, **fields}}


INVALID_KEYS = ("", "-a", "a" * 64, "Example.com/a", "example.com/", "é")
RULES = (
    Case("must be at most 40 characters", {}, {}, ("a" * 40, "a" * 41)),
    Case("must be demo://, hf://ORG/NAME, s3://", {"model": {"uri": "pvc://c/a/b"}}, {"model": {"uri": "az://b/a"}}),
    Case("names no version of the image", {"model": {"uri": f"oci://host:5000/team/llada_2@sha256:{'0' * 64}"}},
         {"model": {"uri": "oci://registry.example/team/llada"}}),
    Case("only a model of the hub (hf://) has revisions", {"model": {**HUB, "revision": "v1"}},
         {"model": {"uri": "demo://", "revision": "v1"}}),
    Case("are downloaded with a token", {"model": {"uri": "pvc://c", "tokenSecretRef": TOKEN}, "lora": {}},
         {"model": {"uri": "pvc://c", "tokenSecretRef": TOKEN}}),
    Case("an adapter has the model's own name", {"model": {**DEMO, "name": "base"}, **adapters({"name": "accept"})},
         adapters({"name": "reject"})),
    Case("a pvc:// adapter lies on the model's own claim", adapters({"uri": "pvc://c/a"}, claimNames=["b", "c"]),
         adapters({"uri": "pvc://c/a"}, claimNames=["b", "cc"])),
    Case("must be demo://NAME, hf://ORG/NAME or pvc://", adapters({"uri": "demo://roman"}), adapters({"uri": "/etc"})),
    Case("only an adapter of the hub (hf://) has revisions", adapters({**HUB, "revision": "v1"}),
         adapters({"uri": "demo://roman", "revision": "v1"})),
    Case("needs exactly one adapter", adapters({}, preMerge=True), adapters({}, {"name": "b"}, preMerge=True)),
    Case("excludes maxAdapters and maxRank", adapters({}, preMerge=False, maxAdapters=2, maxRank=8),
         adapters({}, preMerge=True, maxAdapters=2)),
    Case("or equal to tensor", {"gpu": {}, "parallelism": {"tensor": 4, "expert": 4}},
         {"gpu": {}, "parallelism": {"tensor": 4, "expert": 2}}),
    Case("must divide tensor", nodes(2, tensor=4), nodes(3, tensor=4)),
    Case("such an engine has its own server", nodes(2), nodes(2, data=2)),
    Case("places the pods of a group", nodes(2, topologyKey="example.com/rack"), nodes(1, topologyKey="rack")),
    Case("for the same files in all pods", {**nodes(2), "model": {**HUB, "revision": "v1"}},
         {**nodes(2), "model": HUB}),
    Case("because pods of several nodes read the claim", {**nodes(2), **cached(size="1Gi")},
         {**nodes(2), **cached(size="1Gi", accessModes=["ReadWriteOnce"])}),
    Case("must be a multiple or a divisor of blockSize", engine(blockSize=24, pageSize=32, decodingStrategy="D2f"),
         engine(blockSize=24, pageSize=32, decodingStrategy="FastDllmV2")),
    Case("must be at least (bufferSize + 1) * blockSize", engine(blockSize=32, bufferSize=3, maxNumBatchedTokens=128),
         engine(blockSize=32, bufferSize=3, maxNumBatchedTokens=127)),
    Case("must be Edit with decodingStrategy Dmax", engine(decodingStrategy="Dmax", samplingMode="Edit"),
         engine(decodingStrategy="Dmax")),
    Case("has no effect with samplingMode Edit", engine(samplingMode="Edit", thresholds={"remask": 0}),
         engine(samplingMode="Edit", thresholds={"remask": 0.25})),
    Case("the operator itself sets or refuses these flags",
         engine(extraArgs=["--max-queue=5", "--model-name", "llada2"]),
         engine(extraArgs=["--max-queue=5", "--port=1"])),
    Case("Kubernetes would replace $(NAME) by the value of a variable", engine(extraArgs=["--cors-allow-origins=$x"]),
         engine(extraArgs=["--cors-allow-origins=$(HF_TOKEN)"])),
    Case("a CPU pod runs one engine", {"gpu": {}, "parallelism": {"data": 2}}, {"parallelism": {"data": 2}}),
    Case("needs gpu; set gpu or remove it", {"gpu": {}, **engine(gpuMemoryUtilization=1)},
         engine(gpuMemoryUtilization=0.5)),
    Case("Triton and TritonGrouped need gpu", engine(attnImpl="Torch"), engine(attnImpl="Triton")),
    Case("need Edit", {"model": {**HUB, "family": "llada2dot1_mini"}, **engine(samplingMode="Edit")},
         {"model": {**HUB, "family": "llada2dot1_flash"}, **engine(samplingMode="Naive")}),
    Case("must not hold GPUs", {"gpu": {}, "resources": {"limits": {"cpu": 2, "memory": "4Gi"}}},
         {"resources": {"limits": LIMITS}}),
    Case("needs a tag other than latest, or a digest", {"image": "registry.example:5000/unmask/runtime:1.0"},
         {"image": "registry.example:5000/unmask/runtime"}),
    Case("no pod can be replaced", {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": "50%"}},
         {"rolloutStrategy": {"maxSurge": "0%", "maxUnavailable": 0}}),
    Case("minAvailable and maxUnavailable exclude", {"podDisruptionBudget": {"minAvailable": "50%"}},
         {"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}),
    Case("must not be below minReplicas", {"autoscaling": {"minReplicas": 3, "maxReplicas": 3}},
         scaling(minReplicas=4)),
    Case("only the providers Builtin and KEDA poll", scaling(provider="KEDA", pollingIntervalSeconds=2),
         scaling(provider="HPA", pollingIntervalSeconds=2)),
    Case("only with provider KEDA", scaling(provider="KEDA", keda={"fallbackReplicas": 2}),
         scaling(provider="HPA", keda={})),
    Case("without zero or keda.triggers",
         scaling(provider="KEDA", minReplicas=0, keda={"triggers": [{"type": "cron"}]}),
         scaling(provider="KEDA", minReplicas=0, keda={"triggers": []})),
    Case("needs provider Builtin and minReplicas 0", scaling(minReplicas=0, zero={}), scaling(zero={})),
    Case("forwards requests of every pod", {**scaling(minReplicas=0, zero={}), "networkPolicy": {"from": []}},
         {**scaling(minReplicas=0, zero={}), "networkPolicy": {"from": [{"podSelector": {}}]}}),
    Case("a pool has only pods", {**scaling(), "inferencePool": {}},
         {**scaling(minReplicas=0, zero={}), "inferencePool": {}}),
    Case("or else ipBlock alone", peer(podSelector={}, namespaceSelector={}),
         peer(podSelector={}, ipBlock={"cidr": "10.0.0.0/8"})),
    Case("must be LoadBalancer with", {"service": {"type": "LoadBalancer", "loadBalancerClass": "example.com/internal",
         "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"]}},
         {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}),
    Case("take traffic from outside the cluster", {"service": {"type": "NodePort", "externalTrafficPolicy": "Local"}},
         {"service": {"externalTrafficPolicy": "Local"}}),
    Case("RequireDualStack with two ipFamilies",
         {"service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"],
          "sessionAffinity": "ClientIP"}},
         {"service": {"ipFamilies": ["IPv4", "IPv6"]}}),
    Case("must not name a family twice",
         {"service": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"], "sessionAffinity": "None"}},
         {"service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv6"]}}),
    Case("must be 1 with a MIG slice", {"gpu": MIG, "parallelism": {"data": 1, "tensor": 1}},
         {"gpu": MIG, "parallelism": {"tensor": 2}}),
    Case("deviceClassName and resourceClaims", {"gpu": {"deviceClassName": "gpu.example.com"}},
         {"gpu": {"deviceClassName": "gpu.example.com", "resourceName": "a/b"}}),
    Case("needs either resourceClaimName", {"gpu": {"resourceClaims": [CLAIM]}},
         {"gpu": {"resourceClaims": [{**CLAIM, "resourceClaimName": "b"}]}}),
    Case("which are for the cluster", route(paths=["/v1", "/generate", "/"]), route(paths=["/v1", "/metrics"])),
    Case("lists other DiffusionLMServices", route(backends=[{"service": "canary", "weight": 1}]),
         route(backends=[{"service": "reject", "weight": 1}])),
    Case("only an hf://, s3:// or gs:// model is downloaded", cached(claimName="models", subPath="a/b-c"),
         cached(DEMO, claimName="models")),
    Case("downloaded to a claim only", cached({"uri": "gs://a.b_c/org/LLaDA2.0-mini"}, size="1Gi"),
         {"model": {"uri": "gs://a.b_c/org/LLaDA2.0-mini"}, "modelCache": {}}),
    Case("downloaded with these credentials", cached({**BUCKET, "credentialsSecretRef": {"name": "s3"}}, size="1Gi"),
         {"model": {**HUB, "credentialsSecretRef": {"name": "s3"}}}),
    Case("emptyDir and pvc exclude each other", {**HUB_CACHE, "modelCache": {"emptyDir": {}}},
         {**HUB_CACHE, "modelCache": {"emptyDir": {}, "pvc": {"claimName": "models"}}}),
    Case("only with pvc a Job", {**HUB_CACHE, "modelCache": {"pvc": {"size": "1Gi"}, "fetch": {"timeoutSeconds": 60}}},
         {**HUB_CACHE, "modelCache": {"fetch": {}}}),
    Case("needs claimName or size", cached(size="100Gi", storageClassName="", accessModes=["ReadWriteOnce"]),
         cached(subPath="a")),
    Case("are of a claim that the operator creates", cached(size=1, storageClassName="fast"),
         cached(claimName="models", storageClassName="fast")),
    Case("must be above 0", cached(size="1e3"), cached(size="0Gi")),
    Case("because the download writes", cached(size="1Gi", accessModes=["ReadOnlyMany", "ReadWriteMany"]),
         cached(size="1Gi", accessModes=["ReadOnlyMany"])),
    Case("pod-template-hash, controller-revision-hash", {"commonLabels": {"team": "a", "example.com/cost.center": ""}},
         {"commonLabels": {"app.kubernetes.io/name": "a"}}),
    Case("commonLabels has a key that is not valid", {"commonLabels": {"a" * 63: "b"}}, {"commonLabels": {"a b": "c"}}),
    Case("deployment.kubernetes.io/*, kubectl", {"commonAnnotations": {"example.com/owner": "A team, or two"}},
         {"commonAnnotations": {"kubectl.kubernetes.io/default-container": "a"}}),
    Case("commonAnnotations has a key that is not valid", {"commonAnnotations": {"x.y/z": ""}},
         {"commonAnnotations": {"x/y/z": ""}}),
)  # fmt: skip

# Further cases of the same rules, by a part of the message.
ALSO_REFUSED: dict[str, list[Spec]] = {
    "names no version of the image": [{"model": {"uri": "oci://registry.example/a:latest"}}],
    "must be demo://": [
        {"model": {"uri": uri}}
        for uri in (
            *("hf://org/name@v1", "pvc://c/../d", "demo://x", "hf://a/$(X)"),
            *("oci://a", "oci://a/B:1", "oci://a/b:1@sha256:0"),
            *("s3://bucket", "s3://bucket/a/", "gs://bucket/../a", "s3://Bucket/a", "s3://bucket/a@v1"),
        )
    ],
    "must be demo://NAME": [adapters({"uri": uri}) for uri in ("demo://", "pvc://c/../etc", "hf://a/b@v1")],
    "the operator itself sets": [
        engine(extraArgs=arguments)
        for arguments in (
            *(["--api-key", "k"], ["--chat_template", "/proc/self/environ"], ["--zmq-event-addr=tcp://0.0.0.0:1"]),
            *(["--help"], ["-h"], ["--tensor-parallel-size=2"]),
        )
    ],
    "Kubernetes would replace $(NAME)": [engine(extraArgs=["$(UNMASK_API_KEY)"]), engine(extraArgs=["-l", "$$(A)"])],
    "a CPU pod runs one engine": [{"parallelism": {"tensor": 2}}],
    "or equal to tensor": [{"gpu": {}, "parallelism": {"expert": 2}}],
    "a pvc:// adapter lies on the model's own claim": [
        {"model": {"uri": "pvc://c/m"}, **adapters({"uri": "pvc://cc"})}
    ],
    "needs exactly one adapter": [{"lora": {"preMerge": True}}],
    "excludes maxAdapters and maxRank": [adapters({}, preMerge=True, maxRank=8)],
    "an adapter has the model's own name": [{"model": {**DEMO, "name": "a"}, **adapters({})}],
    "Duplicate value": [
        adapters({}, {"uri": "hf://a/b"}), route(hostnames=["a.b", "a.b"]),
        route(backends=[{"service": "a", "weight": 1}, {"service": "a", "weight": 2}]),
    ],
    "must be 1 with a MIG slice": [{"gpu": MIG, "parallelism": {"data": 2}}],
    "deviceClassName and resourceClaims": [{"gpu": {"resourceClaims": [CLAIM], "deviceClassName": "a"}}],
    "needs either resourceClaimName": [{"gpu": {"resourceClaims": [{"name": "a"}]}}],
    "which are for the cluster": [route(paths=[f"/{name}"]) for name in ("health", "ready", "startup/x")],
    "needs claimName or size": [cached(claimName="models", size="1Gi")],
    "are of a claim that the operator creates": [cached(claimName="models", accessModes=["ReadWriteMany"])],
    "must not hold GPUs": [{"resources": {"requests": {"amd.com/gpu": 1}}},
                           {"gpu": {"resourceName": "x.dev/tpu"}, "resources": {"limits": {"x.dev/tpu": 1}}}],
    "needs a tag other than latest": [{"image": "unmask/runtime:latest"}],
    "no pod can be replaced": [{"rolloutStrategy": {"maxSurge": 0}}],
    "or else ipBlock alone": [peer()],
    "must be LoadBalancer with": [{"service": {"type": "NodePort", "loadBalancerClass": "a"}}],
    "RequireDualStack with two ipFamilies": [
        {"service": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6", "IPv4"]}}
    ],
    "are set by the operator or by Kubernetes": [
        *({"commonLabels": {reserved(key): "a"}} for key in RESERVED_LABELS),
        *({"commonAnnotations": {reserved(key): "a"}} for key in RESERVED_ANNOTATIONS),
    ],
    "commonLabels has a key that is not valid": [{"commonLabels": {key: "a"}} for key in INVALID_KEYS],
}  # fmt: skip

# One plain bound of each kind: (the field, change). The committed schema has the others.
BOUNDS = (
    ("spec.commonLabels.team", {"commonLabels": {"team": "a b"}}),
    ("spec.commonAnnotations.team", {"commonAnnotations": {"team": "a" * 4097}}),
    ("spec.model", {"model": None}),
    ("spec.engine.thresholds.accept", engine(thresholds={"accept": 1.01})),
    ("spec.engine.gpuMemoryUtilization", {"gpu": {}, **engine(gpuMemoryUtilization=0)}),
    ("spec.engine.decodingStrategy", engine(decodingStrategy="multi_bd")),
    ("spec.engine.extraArgs", engine(extraArgs=["x"] * 65)),
    ("spec.replicas", {"replicas": -1}),
    ("spec.rolloutStrategy.maxSurge", {"rolloutStrategy": {"maxSurge": "200%"}}),
    ("spec.resources.limits.memory", {"resources": {"limits": {"memory": "4 GB"}}}),
    ("spec.service.ipFamilies", {"service": {"ipFamilies": []}}),
    ("spec.service.ipFamilies[0]", {"service": {"ipFamilies": ["ipv6"]}}),
    ("spec.modelCache.pvc.accessModes[0]", cached(size="1Gi", accessModes=["ReadWriteOncePod"])),
    ("spec.modelCache.pvc.subPath", cached(claimName="models", subPath="a/../b")),
    ("spec.drainTimeoutSeconds", {"drainTimeoutSeconds": 3601}),
    ("spec.route.parentRefs", {"route": {"parentRefs": []}}),
    ("spec.route.hostnames[0]", route(hostnames=["a.*.example.com"])),
    ("spec.route.paths[0]", route(paths=["/v1/../metrics"])),
    ("spec.route.timeouts.request", route(timeouts={"request": "10"})),
    ("spec.route.backends[0].weight", route(backends=[{"service": "a", "weight": -1}])),
    (
        "spec.inferencePool.endpointPickerRef.failureMode",
        {"inferencePool": {"endpointPickerRef": {"name": "picker", "failureMode": "Open"}}},
    ),
    ("spec.lora.adapters[0].name", adapters({"name": ".."})),
    ("spec.lora.adapters", adapters(*({"name": f"a{n}"} for n in range(257)))),
)
# A spec, edits of it that are rejected with a part of the message, and edits that are accepted, one after another.
FAST = {"size": "100Gi", "storageClassName": "fast"}
EDITS: tuple[tuple[Spec, list[tuple[Spec, str]], list[Spec]], ...] = (
    (
        cached(**FAST),
        [
            (cached(**FAST | {"size": "99Gi"}), "a claim only grows"),
            (cached(**FAST | {"storageClassName": "slow"}), "storageClassName of a claim is immutable"),
            (cached(size="100Gi"), "storageClassName of a claim is immutable"),
            (cached(**FAST, accessModes=["ReadWriteOnce"]), "accessModes of a claim is immutable"),
        ],
        [cached(**FAST | {"size": "0.2Ti"}), cached(claimName="models"), {"model": HUB}],
    ),
    (nodes(2), [(nodes(1), "create a second service")], [nodes(2, topologyKey="rack")]),
    (nodes(1), [(nodes(2), "create a second service")], [{"gpu": {}}, {}]),
)
NAMES_REFUSED = ("1st", "a.b", "a" * 41)
