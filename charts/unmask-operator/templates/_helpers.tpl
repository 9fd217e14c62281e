{{/* As a dependency with an alias the chart has the alias as its name, which may hold letters that no object's name has. */}}
{{- define "unmask.fullname" -}}
{{- $name := .Chart.Name | lower | replace "_" "-" -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of what lives outside namespaces: two releases of one name may stand in two namespaces. */}}
{{- define "unmask.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "unmask.fullname" .) -}}
{{- end -}}

{{- define "unmask.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "unmask.fullname" .) -}}
{{- end -}}

{{/* Labels that never change over a release's life: they select the pods. */}}
{{- define "unmask.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "unmask.labels" -}}
{{ include "unmask.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A whole image reference from {root, image}: registry/repository:tag[@digest]. Without a registry's host each node
would look for it where its own configuration says, which may be a stranger's. */}}
{{- define "unmask.image" -}}
{{- $name := .image.repository -}}
{{- with .root.Values.global.imageRegistry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if not (regexMatch "^([^/]*[.:][^/]*|localhost)/" $name) -}}
{{- fail (printf "image %s: names no registry; set global.imageRegistry to the host and path before both images, such as registry.example.com/team, or localhost for images that were built under that name and loaded into the nodes" $name) -}}
{{- end -}}
{{- $name }}:{{ .image.tag | default .root.Chart.AppVersion -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* name=value lines, as the operator's settings read a map. */}}
{{- define "unmask.lines" -}}
{{- $lines := list -}}
{{- range $name, $value := . }}{{ $lines = append $lines (printf "%s=%v" $name $value) }}{{ end -}}
{{- join "\n" $lines -}}
{{- end -}}
