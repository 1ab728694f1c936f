{{- /* What the schema cannot say of the values, and what Kubernetes would refuse in the middle of an installation. */}}
{{- define "rlhf.check" -}}
{{- include "rlhf.checkName" . }}
{{- include "rlhf.checkEnvironment" . }}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create: false, with serviceAccount.name empty\n  Rule: name the account that gets the operator's rights. Nearest: name: default, for every pod of the namespace." }}
{{- end }}
{{- $own := keys (include "rlhf.labels" . | fromYaml) | sortAlpha }}
{{- $metrics := .Values.metrics }}
{{- $given := dict "podLabels" (.Values.podLabels | default dict) }}
{{- range $part := list "serviceMonitor" "jobsPodMonitor" "prometheusRule" "dashboard" }}
{{- $_ := set $given (printf "metrics.%s.labels" $part) (get (get $metrics $part) "labels" | default dict) }}
{{- end }}
{{- range $field, $labels := $given }}
{{- range $name, $value := $labels }}
{{- if has $name $own }}
{{- printf "%s: %s=%s\n  Rule: the chart sets this label itself. Nearest: another name." $field $name $value | fail }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* 52: 63 characters of a Service or a label, less the longest suffix that the chart adds. */}}
{{- define "rlhf.checkName" -}}
{{- $name := include "rlhf.fullname" . }}
{{- if gt (len $name) 52 }}
{{- printf "release name %s: the objects would be called %s, %d characters\n  Rule: at most 52. Nearest: %s." .Release.Name $name (len $name) (trunc 38 .Release.Name | trimSuffix "-") | fail }}
{{- end }}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) }}
{{- printf "release name %s\n  Rule: lower-case letters, digits and -, first a letter: a Service is called so. Nearest: r-%s." .Release.Name (replace "." "-" .Release.Name) | fail }}
{{- end }}
{{- end }}

{{- define "rlhf.checkEnvironment" -}}
{{- $taken := list }}
{{- range include "rlhf.environment" . | fromYamlArray }}
{{- $taken = append $taken .name }}
{{- end }}
{{- $seen := list }}
{{- range .Values.env }}
{{- if has .name $taken }}
{{- printf "env: %s=%s\n  Rule: the chart sets this variable itself, from another value. Nearest: that value, see values.yaml." .name .value | fail }}
{{- end }}
{{- if has .name $seen }}
{{- printf "env: %s=%s\n  Rule: each variable once." .name .value | fail }}
{{- end }}
{{- $seen = append $seen .name }}
{{- end }}
{{- end }}
