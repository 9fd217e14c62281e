{{/* Settings of the operator, named as in settings.py. The Deployment adds the prefix UNMASK_OPERATOR_. */}}
{{- define "unmask.settings" -}}
RUNTIME_IMAGE: {{ include "unmask.image" (dict "root" . "image" (.Values.engine).image "field" "engine.image") }}
LEASE_NAME: {{ include "unmask.fullname" . | quote }}
DEPLOYMENT: {{ include "unmask.fullname" . | quote }}
OPERATOR_SELECTOR: {{ include "unmask.lines" (include "unmask.selector" . | fromYaml) | quote }}
READ_NODES: {{ and (include "unmask.isOn" (.Values.rbac).create) (include "unmask.isOn" (.Values.rbac).readNodes) | empty | not | quote }}
{{- if (.Values.keda).enabled }}
KEDA: "true"
{{- end }}
{{- if (.Values.activator).enabled }}
ACTIVATOR: {{ include "unmask.activator" . | quote }}
ACTIVATOR_SELECTOR: {{ include "unmask.lines" (include "unmask.activatorSelector" . | fromYaml) | quote }}
{{- end }}
{{- if (.Values.dra).enabled }}
DRA: "true"
{{- end }}
{{- if (.Values.lws).enabled }}
LWS: "true"
{{- end }}
{{- if (.Values.gateway).enabled }}
GATEWAY: "true"
{{- end }}
LOG_LEVEL: {{ (.Values.log).level | default "info" }}
LOG_FORMAT: {{ (.Values.log).format | default "json" }}
{{- if (.Values.modelCache).enabled }}
MODEL_CACHE: "true"
{{- end }}
{{- with .Values.watchNamespaces }}
WATCH_NAMESPACES: {{ join "," . | quote }}
{{- end }}
{{- with .Values.watchSelector }}
WATCH_SELECTOR: {{ . | quote }}
{{- end }}
{{- with (.Values.engine).imagePullSecrets }}
IMAGE_PULL_SECRETS: {{ include "unmask.secretNames" . | quote }}
{{- end }}
{{- $nodes := (.Values.engine).nodeSelector }}
{{- if not (kindIs "invalid" $nodes) }}
ENGINE_NODE_SELECTOR: {{ include "unmask.lines" $nodes | quote }}
{{- end }}
{{- with (.Values.engine).env }}
ENGINE_ENV: {{ include "unmask.lines" . | quote }}
{{- end }}
{{- $gpuEngines := .Values.gpuEngines | default dict }}
{{- with $gpuEngines.nodeSelector }}
GPU_NODE_SELECTOR: {{ include "unmask.lines" . | quote }}
{{- end }}
{{- with $gpuEngines.tolerations }}
GPU_TOLERATIONS: {{ toJson . | quote }}
{{- end }}
{{- with (.Values.engine).caConfigMap }}
CA_CONFIG_MAP: {{ . | quote }}
{{- end }}
{{- end -}}
