{{/* The operator's settings by the names of settings.py; the Deployment adds UNMASK_OPERATOR_ in front. */}}
{{- define "unmask.settings" -}}
RUNTIME_IMAGE: {{ include "unmask.image" (dict "root" . "image" .Values.engine.image) }}
LEASE_NAME: {{ include "unmask.fullname" . }}
DEPLOYMENT: {{ include "unmask.fullname" . }}
OPERATOR_SELECTOR: {{ include "unmask.lines" (include "unmask.selector" . | fromYaml) | quote }}
READ_NODES: {{ and .Values.rbac.create .Values.rbac.readNodes | quote }}
LOG_LEVEL: {{ .Values.log.level }}
LOG_FORMAT: {{ .Values.log.format }}
{{- with .Values.watchNamespaces }}
WATCH_NAMESPACES: {{ join "," . | quote }}
{{- end }}
{{- with .Values.watchSelector }}
WATCH_SELECTOR: {{ . | quote }}
{{- end }}
{{- with .Values.engine.imagePullSecrets }}
IMAGE_PULL_SECRETS: {{ join "," . | quote }}
{{- end }}
{{- with .Values.engine.env }}
ENGINE_ENV: {{ include "unmask.lines" . | quote }}
{{- end }}
{{- $gpuEngines := .Values.gpuEngines | default dict }}
{{- with $gpuEngines.nodeSelector }}
GPU_NODE_SELECTOR: {{ include "unmask.lines" . | quote }}
{{- end }}
{{- with $gpuEngines.tolerations }}
GPU_TOLERATIONS: {{ toJson . | quote }}
{{- end }}
{{- with .Values.engine.caConfigMap }}
CA_CONFIG_MAP: {{ . }}
{{- end }}
{{- end -}}
