"""The messages of conditions, by reason. Other modules give the values of the names in braces."""

import re


def rows(table: str) -> dict[str, str]:
    """Parses a table of lines ``NAME: TEXT``. An indented line continues the one before."""
    lines = re.split(r"\n(?=\S)", table.strip())
    return {name: " ".join(text.split()) for name, text in (line.split(": ", 1) for line in lines)}


MESSAGES = rows("""
Ready: the service takes requests
Serving: at least one pod takes requests
Asleep: the autoscaler has scaled the service to 0 replicas because it is idle; a request wakes it
Waking: the activator holds requests until a pod is Ready: {cause}
Scheduled: every pod has a node
Loaded: the model is loaded
KeyRequired: clients need a key of spec.auth
Active: the {autoscaler} reads the pods' metrics
Suspended: spec.suspend is true: no engine runs; set it to false to serve again
NotAccepted: nothing runs because the spec has not been accepted
NoReplicas: spec.replicas is 0: no engine runs
NoReadyPods: no pod is Ready
Deleting: the deletion waits for the finalizers {finalizers}, and only replicas and suspend have an effect until then:
    set spec.suspend to true to end the pods
TwoOperators: the releases {releases} of the operator manage this resource and undo each other's changes: set
    watchNamespaces or watchSelector so that only one of them does
OperatorUpgraded: this operator renders another pod template and does not change the running pods; the next edit of the
    pods, or a new value of the annotation {annotation}, applies it
NoAuth: spec.service.type is LoadBalancer without spec.auth: every client that reaches the address is served; set
    spec.auth
Starting: the engine's process has started and its start-up probe has not passed yet
UnknownValue: spec.autoscaling has a value that this operator does not know: {error}
AnotherScaler: field manager {manager} scales this resource too, such as a HorizontalPodAutoscaler or ScaledObject that
    somebody created: remove that one, or remove spec.autoscaling
ReplicasOverwritten: field manager {manager} keeps setting spec.replicas, which the autoscaler owns: leave replicas out
    of its manifest
AdapterFailed: cannot be served: {adapters}

FieldConflict: {child}: {client} keeps changing {fields}, and the operator repairs it at increasing intervals; exclude
    the object from that client, or set its value in this resource
FieldConflict, replicas: {child}: {client} keeps changing {fields}, and the operator repairs it at increasing intervals;
    delete its autoscaler, such as a HorizontalPodAutoscaler, and scale this resource
    (spec.autoscaling, or its scale subresource)
FieldConflict, by admission: {child}: an admission webhook changes {fields} on each write, or the API server does;
    exempt the object from the webhook, or set the webhook's value in this resource
FieldConflict, deleted: {child}: another client keeps deleting it, and the operator creates it again; exclude the
    children of this resource from that client, such as a GitOps tool that prunes

NoScheduler: no scheduler has handled pod {pod}: check that the scheduler {scheduler} runs{field}
PersistentVolumeClaimNotFound: PersistentVolumeClaim {name} does not exist in this namespace: create it, or correct
    spec.model.uri or the volume of spec.podTemplate that names it
PersistentVolumeClaimUnbound: a PersistentVolumeClaim has no volume yet: {names}; kubectl describe pvc says why
ResourceClaimNotFound: {kind} {name} does not exist in this namespace: create it, or correct spec.gpu.resourceClaims or
    spec.podTemplate.spec.resourceClaims
WaitingForQueue: Kueue has not admitted pod {pod} yet{queue}; kubectl describe workloads says why
Waiting, Gateway: no controller has reported on HTTPRoute {route} for {parents}; if that lasts, check that the Gateway
    exists and that the controller of its class runs
ClaimNotFound: PersistentVolumeClaim {claim} does not exist in this namespace: create it, or correct
    spec.modelCache.pvc.claimName
ClaimOnOneNode: the claim of spec.modelCache.pvc has the access mode {modes}, and up to {most} pods use it: those on
    another node do not start; use a claim with ReadWriteMany, or one node
ReadinessProbeFailed: pod {pod} has loaded its model, but its readiness probe (/ready) fails
ReadinessGatesNotReady: pod {pod} waits for its readiness gates: {conditions}

NetworkPolicyBlocksClients: spec.networkPolicy admits only pods of the cluster, and spec.service.type {type} is for
    external clients; add their addresses as ipBlock to spec.networkPolicy.from, or use ClusterIP
NetworkPolicyBlocksMetrics: spec.networkPolicy.from restricts the clients, and spec.monitoring.podMonitor makes
    Prometheus scrape the pods; add Prometheus to spec.networkPolicy.metricsFrom
DisruptionBudgetBlocksDrains: spec.podDisruptionBudget.{limit}: no pod may be evicted, and a drain of its node never
    completes; lower minAvailable, set maxUnavailable 1, or add replicas
TargetOutOfReach: spec.autoscaling.targets: {targets}: replicas are never added; lower the target
GPUsUnused: spec.podTemplate requests {gpus} per pod, and the engine {use}
GPUsMissing: spec.podTemplate requests {gpus} per pod, and the engine {use}
SharedMemoryExceedsMemory: spec.sharedMemorySize is {shared}, which counts towards memory, and the memory limit of the
    engine or of its pod is {memory}; raise spec.resources.limits.memory, or lower spec.sharedMemorySize
EachPodDownloads: each of the {nodes} pods of a group downloads the model of spec.model.uri; set spec.modelCache.pvc for
    one copy of all pods
CacheExceedsStorage: spec.modelCache.emptyDir.sizeLimit is {cache}, and the engine's limit of ephemeral-storage is
    {disk}: the pod is evicted before the cache is full; raise spec.resources.limits[ephemeral-storage], or lower
    sizeLimit
GracePeriodTooShort: spec.podTemplate.spec.terminationGracePeriodSeconds is {grace}, and ending takes up to {needed} s
    ({parts}): requests are cut off; {fix}
PreStopNotCounted: spec.podTemplate has a preStop hook of unknown length for the container main, and
    terminationGracePeriodSeconds is {grace}, of which draining takes up to {drain} s: requests may be cut off; use
    preStop.sleep, or drainDelaySeconds instead of the hook, or set spec.podTemplate.spec.terminationGracePeriodSeconds
    to {end} and the time of the hook
ProbeTimeoutExceedsPeriod: spec.{probe}.timeoutSeconds is {timeout} and periodSeconds {period}: a check lasts longer
    than the time to the next one; raise periodSeconds, or lower timeoutSeconds
LivenessWithoutStartupProbe: spec.podTemplate removes startupProbe of the engine, and livenessProbe restarts the engine
    while it loads its model; keep startupProbe, or remove livenessProbe too
LivenessBeforeReadiness: spec.livenessProbe restarts the engine after {liveness} s, and spec.readinessProbe takes it out
    of the Service after {readiness} s (periodSeconds * failureThreshold); raise failureThreshold of livenessProbe
HostPortBlocksRollouts: spec.podTemplate uses a port of the node, so that a node runs only one pod, and a rollout starts
    the new pod before it ends an old one; set spec.rolloutStrategy to maxSurge 0 and maxUnavailable 1, or remove
    hostPort and hostNetwork
""")
