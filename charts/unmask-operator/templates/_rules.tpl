{{/* What the operator does in the namespaces it watches. tools/permissions.py says why; a test compares. */}}
{{- define "unmask.watchedRules" -}}
- apiGroups: [serving.unmask.dev]
  resources: [diffusionlmservices]
  verbs: [list, watch]
- apiGroups: [serving.unmask.dev]
  resources: [diffusionlmservices/status, diffusionlmservices/scale]
  verbs: [patch]
- apiGroups: [serving.unmask.dev]
  resources: [diffusionlmservices/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, list]
{{- end -}}

{{/* In its own namespace: the one Lease. No create: the chart makes it, and gone with the chart it stays gone. */}}
{{- define "unmask.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "unmask.fullname" . }}]
  verbs: [get, update]
{{- end -}}

{{/* Outside namespaces, by rbac.readNodes: only while a pod finds no node. */}}
{{- define "unmask.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}
