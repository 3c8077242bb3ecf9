{{/* What the operator is told; each variable is a field of its settings. */}}
{{- define "tidegate.operator.env" -}}
- name: TIDEGATE_OPERATOR_SERVER_IMAGE
  value: {{ include "tidegate.image" (dict "image" .Values.server.image "appVersion" .Chart.AppVersion) | quote }}
- name: TIDEGATE_OPERATOR_SERVER_IMAGE_PULL_POLICY
  value: {{ .Values.server.image.pullPolicy | quote }}
{{- with .Values.watchNamespaces }}
- name: TIDEGATE_OPERATOR_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
- name: TIDEGATE_OPERATOR_CLUSTER_DOMAIN
  value: {{ .Values.clusterDomain | quote }}
- name: TIDEGATE_OPERATOR_LEASE_NAME
  value: {{ include "tidegate.operator.name" . | quote }}
- name: TIDEGATE_OPERATOR_LEASE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: TIDEGATE_OPERATOR_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: TIDEGATE_OPERATOR_LOG_LEVEL
  value: {{ .Values.operator.log.level | quote }}
- name: TIDEGATE_OPERATOR_LOG_FORMAT
  value: {{ .Values.operator.log.format | quote }}
{{- end -}}
