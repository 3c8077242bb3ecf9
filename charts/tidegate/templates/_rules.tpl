{{/*
What the operator may do where it serves InferenceServices: the one list behind both the ClusterRole and the Roles.
It never reads Secrets: a pod's token and pull secrets are referred to by name, and only the kubelet opens them.
*/}}
{{- define "tidegate.operator.rules" -}}
- apiGroups: [tidegate.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [tidegate.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""] # patch: the deletion cost, so that a scale-down takes the least busy pod
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""] # create: to say why something was done; list: what keeps a pod's volumes from being mounted
  resources: [events]
  verbs: [create, list]
{{- end -}}
