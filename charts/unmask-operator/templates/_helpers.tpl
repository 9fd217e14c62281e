{{/* Full name of the release. The name of a dependency is its alias, which may contain characters that object names must not. */}}
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

{{/* Name of cluster-scoped objects, which is unique for releases of one name in several namespaces. */}}
{{- define "unmask.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "unmask.fullname" .) -}}
{{- end -}}

{{- define "unmask.serviceAccount" -}}
{{- (.Values.serviceAccount).name | default (include "unmask.fullname" .) -}}
{{- end -}}

{{/* Selector of the pods: labels that do not change between upgrades. */}}
{{- define "unmask.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Name of the activator's objects, and the selector of its pods. */}}
{{- define "unmask.activator" -}}
{{- printf "%s-activator" (include "unmask.fullname" .) -}}
{{- end -}}
{{- define "unmask.activatorSelector" -}}
app.kubernetes.io/name: {{ printf "%s-activator" (.Values.nameOverride | default .Chart.Name) | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}
{{- define "unmask.activatorLabels" -}}
{{- $own := merge (include "unmask.activatorSelector" . | fromYaml) (dict "app.kubernetes.io/component" "activator") -}}
{{- merge $own (include "unmask.labels" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "unmask.labels" -}}
{{ include "unmask.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* Annotations of an object from {root, own}; `own` overrides commonAnnotations. Empty without annotations. */}}
{{- define "unmask.annotations" -}}
{{- with merge dict (.own | default dict) (.root.Values.commonAnnotations | default dict) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Comma-separated names of Secrets, from a list of names and objects with a name. */}}
{{- define "unmask.secretNames" -}}
{{- $names := list -}}
{{- range . }}{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end }}{{- end -}}
{{- $names | uniq | join "," -}}
{{- end -}}

{{/* "true" unless the value is false. A null value, or one that an earlier release lacks, counts as true. */}}
{{- define "unmask.isOn" -}}
{{- if ne (toString .) "false" }}true{{ end -}}
{{- end -}}

{{/* Validation beyond the schema: rejects invalid derived names, keys that select pods or aggregate roles, and variables that
are settings. */}}
{{- define "unmask.check" -}}
{{- $name := include "unmask.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride: is not set, and the name %s, derived from the release %s, is not valid for a Service; set it to a name of a-z, 0-9 and - that starts with a letter" $name .Release.Name) -}}
{{- end -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "pod-template-hash" -}}
{{- range $section := list "commonLabels" "podLabels" -}}
{{- range $key, $_ := (index $.Values $section | default dict) -}}
{{- if or (has $key $own) (hasPrefix "rbac.authorization.k8s.io/aggregate-to-" $key) -}}
{{- fail (printf "%s: %s is set by the chart or by Kubernetes; remove it" $section $key) -}}
{{- end -}}
{{- if and (eq $section "podLabels") (hasKey ($.Values.commonLabels | default dict) $key) -}}
{{- fail (printf "podLabels: %s is also in commonLabels, which apply to the pods; remove one of them" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $section := list "commonAnnotations" "podAnnotations" "deploymentAnnotations" -}}
{{- range $key, $_ := (index $.Values $section | default dict) -}}
{{- if or (hasPrefix "helm.sh/hook" $key) (hasPrefix "meta.helm.sh/" $key) -}}
{{- fail (printf "%s: %s would prevent Helm from upgrading or removing the object; remove it" $section $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "UNMASK_OPERATOR_" .name -}}
{{- fail (printf "extraEnv: %s is a setting that the chart sets; use the chart's values" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Image reference from {root, image, field}: registry/repository:tag[@digest]. The registry is required, because nodes would
otherwise use the registry of their configuration, which may be untrusted. */}}
{{- define "unmask.image" -}}
{{- $name := (.image).repository -}}
{{- if not $name -}}
{{- fail (printf "%s.repository: is not set; name the image's repository, or do not set %s to null" .field .field) -}}
{{- end -}}
{{- if eq (.image.tag | default "") "latest" -}}
{{- fail (printf "%s.tag: latest is not supported, because nodes could run different versions of it; set the version that you built, or leave it empty for %s" .field .root.Chart.AppVersion) -}}
{{- end -}}
{{- $hasRegistry := "^([^/]*[.:][^/]*|localhost)/" -}}
{{- with (.root.Values.global).imageRegistry -}}
{{- if regexMatch $hasRegistry $name -}}
{{- fail (printf "%s.repository: %s has a registry, and global.imageRegistry has one too; leave one of them out" $.field $name) -}}
{{- end -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if not (regexMatch $hasRegistry $name) -}}
{{- fail (printf "image %s: has no registry; set global.imageRegistry to the registry host and path of both images, such as registry.example.com/team, or to localhost for images that are loaded into the nodes" $name) -}}
{{- end -}}
{{- $name }}:{{ .image.tag | default (.root.Chart.AppVersion | replace "+" "_") -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Lines of name=value, the format of maps in the operator's settings. */}}
{{- define "unmask.lines" -}}
{{- $lines := list -}}
{{- range $name, $value := . }}{{ $lines = append $lines (printf "%s=%v" $name $value) }}{{ end -}}
{{- join "\n" $lines -}}
{{- end -}}
