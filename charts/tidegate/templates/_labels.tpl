{{/* What selects the operator's pods: never changes during a release's life. */}}
{{- define "tidegate.operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* On every object of the chart. */}}
{{- define "tidegate.labels" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tidegate
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}
