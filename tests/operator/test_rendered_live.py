"""Tests that a real API server accepts the rendered objects strictly and returns them without differences."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.authorization import restrict
from tests.operator.live.objects import lws_crd
from tests.operator.samples import SETTINGS, child, make, observe, resource
from tests.operator.snapshot import ROOT, examples
from tools import crd
from unmask_operator.kinds import LEADER_WORKER_SETS
from unmask_operator.objects import API_VERSION, KIND, Obj, Ref
from unmask_operator.plan.drift import content, field_name, replaced
from unmask_operator.plan.plan import Plan

pytestmark = pytest.mark.cluster

SPECS = yaml.safe_load("""
everything:
  replicas: 2
  resources: {limits: {cpu: 1, memory: 1024Mi}, requests: {cpu: 1000m, memory: 0.5Gi}}
  sharedMemorySize: 1024Mi
  service: {type: NodePort}
  autoscaling:
    provider: HPA
    minReplicas: 2
    maxReplicas: 5
    targets: {queuedRequestsPerReplica: 4, kvCacheUtilizationPercent: 100}
    behavior: {scaleDown: {policies: [{type: Percent, value: 50, periodSeconds: 60}]}}
  networkPolicy: {from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}
  podDisruptionBudget: {minAvailable: 50%}
  rolloutStrategy: {maxSurge: 0, maxUnavailable: 50%}
  podTemplate:
    metadata: {annotations: {note: ""}}
    spec:
      hostNetwork: false
      containers:
      - name: main
        readinessProbe: {initialDelaySeconds: 0}
        env: [{name: EMPTY, value: ""}]
      - name: sidecar
        image: sidecar:1
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        ports: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}]

empty:  # values that the API server drops or replaces by defaults
  gpu: {}
  lora: {maxAdapters: 1, adapters: []}
  networkPolicy: {}
  podDisruptionBudget: {}
  service: {annotations: {}}
  serviceAccount: {annotations: {}}
  podTemplate:
    metadata: {labels: {}, annotations: {}}
    spec:
      affinity:
        podAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: zone
            labelSelector: {matchLabels: {}}
            namespaces: []
            namespaceSelector: {matchLabels: {}, matchExpressions: [{key: a, operator: Exists, values: []}]}
        podAntiAffinity: {}
      dnsConfig: {}
      dnsPolicy: ""
      hostAliases: []
      imagePullSecrets: []
      nodeSelector: {}
      overhead: {}
      readinessGates: []
      restartPolicy: ""
      schedulerName: ""
      securityContext: {}
      tolerations: []
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}
      - maxSkew: 1
        topologyKey: rack
        whenUnsatisfiable: ScheduleAnyway
        labelSelector: {matchLabels: {}, matchExpressions: []}
      volumes:
      - {name: csi, csi: {driver: a.example, volumeAttributes: {}}}
      - {name: map, configMap: {name: a, items: []}}
      - {name: disk, emptyDir: {}}
      - {name: path, hostPath: {path: /a, type: ""}}
      - {name: rbd, rbd: {monitors: [a], image: b, pool: "", user: "", keyring: ""}}
      - name: scaleio
        scaleIO: {gateway: g, system: s, secretRef: {name: x}, volumeName: v, fsType: "", storageMode: ""}
      - name: info
        downwardAPI: {items: [{path: name, fieldRef: {apiVersion: "", fieldPath: metadata.name}}]}
      - name: claim
        ephemeral:
          volumeClaimTemplate:
            metadata: {labels: {}}
            spec:
              accessModes: [ReadWriteOnce]
              selector: {matchLabels: {}}
              resources: {requests: {storage: 0.5Gi}}
      containers:
      - name: main
        lifecycle: {}
        resources: {limits: {}, requests: {}, claims: []}
        securityContext: {}
        envFrom: []
      - name: sidecar
        image: sidecar:1
        args: []
        env: []
        imagePullPolicy: ""
        livenessProbe:
          httpGet: {port: 1, path: "", scheme: ""}
          initialDelaySeconds: 0
          periodSeconds: 0
          timeoutSeconds: 0
          successThreshold: 0
          failureThreshold: 0
        ports: [{containerPort: 1, hostPort: 0, protocol: ""}]
        resources: {}
        securityContext: {capabilities: {add: [], drop: []}, seLinuxOptions: {}}
        terminationMessagePath: ""
        terminationMessagePolicy: ""
        workingDir: ""
""")
TRUSTED = replace(SETTINGS, ca_config_map="roots")  # what the chart may add to pods
RESOURCES = {**examples(), **{name: resource(name, **spec) for name, spec in SPECS.items()}}
APIS = frozenset({LEADER_WORKER_SETS.api})  # of the optional kinds, those that the fixture `crds` defines


@pytest.fixture(scope="module")
def crds(admin: Kube) -> Iterator[None]:
    admin.define(crd.crd())
    admin.define(lws_crd())
    yield
    admin.undefine(lws_crd())


def created(admin: Kube, namespace: str, manifest: Obj) -> Obj:
    metadata = {"name": manifest["metadata"]["name"], "namespace": namespace}
    return admin.create({**manifest, "metadata": metadata}, fieldValidation="Strict")


def written(admin: Kube, plan: Plan) -> list[Obj]:
    return [admin.create(made, fieldManager="unmask-operator", fieldValidation="Strict") for made in plan.children]


def live(admin: Kube, plan: Plan) -> list[Obj]:
    refs = [(Ref.of(made), made["metadata"]["namespace"]) for made in plan.children]
    return [admin.get(ref.api_version, ref.kind, ref.name, namespace) for ref, namespace in refs]


@pytest.mark.parametrize("name", RESOURCES)
def test_written_objects_are_read_back_without_a_difference(admin: Kube, namespace: str, crds: None, name: str) -> None:
    service = created(admin, namespace, RESOURCES[name])
    plan = make(observe(service, apis=APIS), TRUSTED)
    assert all(problem.condition != "Accepted" for problem in plan.problems)
    written(admin, plan)
    found = live(admin, plan)
    assert [
        f"{made['kind']} {field_name(path)}"
        for made, seen in zip(plan.children, found, strict=True)
        for path in replaced(made, seen)
    ] == []

    service = admin.get(API_VERSION, KIND, service["metadata"]["name"], namespace)
    again = make(observe(service, *found, apis=APIS), TRUSTED)
    assert again.children == plan.children, "the revision that was read back does not cover the resource"
    assert again.delete == ()


def test_the_other_objects_of_the_examples_are_accepted_with_restricted_pod_security(
    admin: Kube, namespace: str
) -> None:
    restrict(admin, namespace)
    documents = [doc for path in (ROOT / "examples").glob("*.yaml") for doc in yaml.safe_load_all(path.read_text())]
    for doc in (doc for doc in documents if doc["kind"] not in ("Namespace", KIND)):
        doc["metadata"]["namespace"] = namespace
        admin.create(doc, dryRun="All", fieldValidation="Strict")
        if doc["kind"] == "Job":  # its pods are not created here
            pod = {**doc["metadata"], "name": "client"}
            spec = doc["spec"]["template"]["spec"]
            admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec}, dryRun="All")


def test_any_change_of_a_live_object_differs_and_is_repaired(admin: Kube, namespace: str, crds: None) -> None:
    plan = make(observe(created(admin, namespace, RESOURCES["everything"]), apis=frozenset()))
    written(admin, plan)
    changes: dict[str, Any] = {
        "Deployment": {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}},
        "Service": {"spec": {"selector": {"other": "pods", "serving.unmask.dev/service": None}}},
        "PodDisruptionBudget": {"spec": {"minAvailable": 1}},
        "HorizontalPodAutoscaler": {"spec": {"maxReplicas": 6}},
        "NetworkPolicy": {"spec": {"ingress": [{}]}},
        "ServiceAccount": {"automountServiceAccountToken": None},
    }
    for kind, change in changes.items():
        desired = child(plan, kind)
        before = content(admin.apply(desired, manager="unmask-operator"))
        assert content(admin.patch(desired, change)) != before, kind
        assert content(admin.apply(desired, manager="unmask-operator")) == before, kind
    desired, restart = child(plan, "Deployment"), {"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"}
    restarted = admin.patch(desired, {"spec": {"template": {"metadata": {"annotations": restart}}}})
    seen = admin.apply(desired, manager="unmask-operator")
    assert seen["spec"]["template"]["metadata"]["annotations"].items() >= restart.items()
    assert content(seen) == content(restarted), "`kubectl rollout restart` was drift"
