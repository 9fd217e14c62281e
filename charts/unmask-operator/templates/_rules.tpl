{{/* Permissions in watched namespaces. A test compares them with tools/permissions.py, which documents the purposes. */}}
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
{{- if (.Values.modelCache).enabled }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch{{ if (.Values.rbac).adoption }}, delete{{ end }}]
{{- end }}
{{- if (.Values.rbac).adoption }}
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
{{- end }}
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
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
  verbs: [get, list, create, patch, delete]
{{- if (.Values.activator).enabled }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices/restricted]
  verbs: [create]
{{- end }}
{{- if (.Values.keda).enabled }}
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if (.Values.dra).enabled }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if (.Values.lws).enabled }}
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, create, patch{{ if (.Values.rbac).adoption }}, delete{{ end }}]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [patch]
{{- end }}
{{- if (.Values.gateway).enabled }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, list]
{{- end -}}

{{/* Permissions of the activator in watched namespaces. */}}
{{- define "unmask.activatorRules" -}}
- apiGroups: [serving.unmask.dev]
  resources: [diffusionlmservices]
  verbs: [list, watch]
- apiGroups: [serving.unmask.dev]
  resources: [diffusionlmservices/scale]
  verbs: [patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list]
{{- end -}}

{{/* Permissions in the operator's namespace: its Lease and its Deployment. `create` cannot be limited by resourceNames. */}}
{{- define "unmask.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "unmask.fullname" . | quote }}]
  verbs: [get, update]
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "unmask.fullname" . | quote }}]
  verbs: [get]
{{- if (.Values.activator).enabled }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list]
{{- end }}
{{- end -}}

{{/* Cluster-scoped permissions of rbac.readNodes, used while a pod is unschedulable. */}}
{{- define "unmask.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}
