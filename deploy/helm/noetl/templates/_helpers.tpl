{{- define "noetl.name" -}}{{ printf "%s-noetl" .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "noetl.labels" -}}
app.kubernetes.io/name: noetl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "noetl.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}

{{- define "noetl.scheme" -}}{{ if .Values.server.tlsSecret }}https{{ else }}http{{ end }}{{- end }}

{{/* Settings of servers and workers. */}}
{{- define "noetl.commonEnv" -}}
- { name: NOETL_HOME, value: /var/lib/noetl }
{{- with .Values.nats.url }}
- { name: NOETL_NATS_URL, value: {{ . | quote }} }
{{- end }}
- { name: NOETL_RESULTS, value: {{ required "set `results` to a result store that all pods reach, for example s3://bucket/results" .Values.results | quote }} }
{{- end }}

{{/* Settings of servers and of the migration: the store and the key that encrypts credentials. */}}
{{- define "noetl.storeEnv" -}}
- name: NOETL_STORE
  valueFrom: { secretKeyRef: { name: {{ .Values.store.secret | quote }}, key: {{ .Values.store.key | quote }} } }
- name: NOETL_SECRET_KEY
  valueFrom: { secretKeyRef: { name: {{ .Values.keysSecret | quote }}, key: secret.key } }
{{- end }}

{{- define "noetl.volumes" -}}
- { name: home, emptyDir: {} }
- { name: tmp, emptyDir: {} }
{{- end }}

{{- define "noetl.mounts" -}}
- { name: home, mountPath: /var/lib/noetl }
- { name: tmp, mountPath: /tmp }
{{- end }}
