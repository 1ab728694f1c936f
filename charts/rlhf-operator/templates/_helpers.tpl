{{- define "rlhf.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end }}
{{- end }}

{{- /* Name of what has no namespace, or lies in somebody else's: two releases never meet there, as namespaces have no dots. */}}
{{- define "rlhf.globalName" -}}
{{ .Release.Namespace }}.{{ include "rlhf.fullname" . }}
{{- end }}

{{- define "rlhf.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "rlhf.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "rlhf.labels" -}}
{{ include "rlhf.selector" . }}
{{ include "rlhf.commonLabels" . }}
{{- end }}

{{- define "rlhf.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "rlhf.fullname" .) }}
{{- end }}

{{- define "rlhf.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "rlhf.tokenSecret" -}}
{{- .Values.tokenKey.existingSecret | default (printf "%s-token-key" (include "rlhf.fullname" .)) }}
{{- end }}

{{- /* Namespaces whose jobs the operator handles, separated by commas; empty text = all. */}}
{{- define "rlhf.namespaces" -}}
{{- if eq .Values.watch.scope "release" }}{{ .Release.Namespace }}{{ else if eq .Values.watch.scope "namespaces" }}{{ join "," .Values.watch.namespaces }}{{ end }}
{{- end }}

{{- /* The restricted Pod Security Standard, for every pod of the chart. */}}
{{- define "rlhf.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rlhf.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The rights in a namespace with jobs. docs/security.md says why each is there. */}}
{{- define "rlhf.rules" -}}
- apiGroups: [rlhf.dev]
  resources: [rlhfjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [rlhf.dev]
  resources: [rlhfjobs/status]
  verbs: [patch]
- apiGroups: [rlhf.dev]
  resources: [rlhfjobs/finalizers]
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create]
{{- if .Values.jobs.podDisruptionBudget }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, delete]
{{- end }}
{{- if eq .Values.headAccess "proxy" }}
- apiGroups: [""]
  resources: [services/proxy]
  verbs: [get, create]
{{- end }}
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
{{- end }}
{{- end }}

{{- /* Variables of the operator that values of their own stand for. */}}
{{- define "rlhf.environment" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: RLHF_RELEASE, value: {{ include "rlhf.fullname" . | quote }}}
- {name: RLHF_OPERATOR_LABELS, value: {{ include "rlhf.selector" . | fromYaml | toJson | quote }}}
- {name: RLHF_WATCH_SCOPE, value: {{ .Values.watch.scope | quote }}}
- {name: RLHF_WATCH_NAMESPACES, value: {{ include "rlhf.namespaces" . | quote }}}
- {name: RLHF_DEFAULT_IMAGE, value: {{ .Values.trainer.image | quote }}}
- {name: RLHF_DEFAULT_RAY_VERSION, value: {{ .Values.trainer.rayVersion | quote }}}
- {name: RLHF_TOKEN_KEY_FILE, value: /etc/rlhf-operator/token_key}
- {name: RLHF_WORKERS, value: {{ .Values.concurrentReconciles | quote }}}
- {name: RLHF_HEAD_ACCESS, value: {{ .Values.headAccess | quote }}}
- {name: RLHF_CLUSTER_DOMAIN, value: {{ .Values.clusterDomain | quote }}}
{{- with .Values.jobs.metricsNamespace }}
- {name: RLHF_METRICS_FROM, value: {{ dict "kubernetes.io/metadata.name" . | toJson | quote }}}
{{- end }}
- {name: RLHF_HEAD_DISRUPTION_BUDGET, value: {{ .Values.jobs.podDisruptionBudget | quote }}}
- {name: RLHF_KUEUE, value: {{ .Values.kueue.enabled | quote }}}
- {name: RLHF_LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
- {name: RLHF_LOG_FORMAT, value: {{ .Values.logFormat | quote }}}
{{- end }}
