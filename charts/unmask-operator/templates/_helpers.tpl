{{/* As a dependency with an alias the chart has the alias as its name, which may hold letters that no object's name has. */}}
{{- define "unmask.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name | lower | replace "_" "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
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
{{- (.Values.serviceAccount).name | default (include "unmask.fullname" .) -}}
{{- end -}}

{{/* Labels that never change over a release's life: they select the pods. */}}
{{- define "unmask.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "unmask.labels" -}}
{{ include "unmask.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* The annotations of an object from {root, own}: its own ones override commonAnnotations. Empty without any. */}}
{{- define "unmask.annotations" -}}
{{- with merge dict (.own | default dict) (.root.Values.commonAnnotations | default dict) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Names of Secrets, separated by commas, from a list of names and of objects with a name. */}}
{{- define "unmask.secretNames" -}}
{{- $names := list -}}
{{- range . }}{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end }}{{- end -}}
{{- $names | uniq | join "," -}}
{{- end -}}

{{/* "true" unless the value is false: a value that is null, or that the values of an earlier release lack, is on. */}}
{{- define "unmask.isOn" -}}
{{- if ne (toString .) "false" }}true{{ end -}}
{{- end -}}

{{/* Refuses what the schema cannot see: keys that select pods or extend roles, variables that are settings. */}}
{{- define "unmask.check" -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "pod-template-hash" -}}
{{- range $section := list "commonLabels" "podLabels" -}}
{{- range $key, $_ := (index $.Values $section | default dict) -}}
{{- if or (has $key $own) (hasPrefix "rbac.authorization.k8s.io/aggregate-to-" $key) -}}
{{- fail (printf "%s: %s is set by the chart or by Kubernetes; remove it" $section $key) -}}
{{- end -}}
{{- if and (eq $section "podLabels") (hasKey ($.Values.commonLabels | default dict) $key) -}}
{{- fail (printf "podLabels: commonLabels has %s too, and the pods have those; remove one of them" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $section := list "commonAnnotations" "podAnnotations" "deploymentAnnotations" -}}
{{- range $key, $_ := (index $.Values $section | default dict) -}}
{{- if or (hasPrefix "helm.sh/hook" $key) (hasPrefix "meta.helm.sh/" $key) -}}
{{- fail (printf "%s: %s would keep Helm from upgrading or removing what it installs; remove it" $section $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "UNMASK_OPERATOR_" .name -}}
{{- fail (printf "extraEnv: %s is a setting that the chart writes; use the chart's values" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A whole image reference from {root, image, field}: registry/repository:tag[@digest]. Without a registry's host each node
would look for it where its own configuration says, which may be a stranger's. */}}
{{- define "unmask.image" -}}
{{- $name := (.image).repository -}}
{{- if not $name -}}
{{- fail (printf "%s.repository: is not set; name the image's repository, or do not set %s to null" .field .field) -}}
{{- end -}}
{{- with (.root.Values.global).imageRegistry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
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
