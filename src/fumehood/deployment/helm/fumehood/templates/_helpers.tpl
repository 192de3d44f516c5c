{{- define "fumehood.name" -}}
{{- /* KubeRay adds up to 13 characters to it for the names of its services. */ -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "fumehood.labels" -}}
app.kubernetes.io/name: fumehood
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fumehood.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "fumehood.tokenSecret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-token" (include "fumehood.name" .)) }}
{{- end -}}

{{- /* Where the others find the head: the service that KubeRay makes. */ -}}
{{- define "fumehood.head" -}}
{{ include "fumehood.name" . }}-head-svc:6379
{{- end -}}

{{- define "fumehood.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* What Ray's containers may do: nothing that an ordinary process may not. */ -}}
{{- define "fumehood.plainContainer" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "fumehood.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
