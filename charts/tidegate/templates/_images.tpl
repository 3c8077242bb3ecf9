{{/* A full image reference. Takes (dict "image" <values> "appVersion" <string>). */}}
{{- define "tidegate.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .appVersion .image.tag) -}}
{{- end -}}
{{- end -}}
