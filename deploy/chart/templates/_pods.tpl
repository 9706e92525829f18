{{/* What both tiers' objects have in common; each takes a dict of root, the top context, and tier. */}}

{{- define "forebay.selector" -}}
app.kubernetes.io/name: forebay-{{ .tier }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "forebay.labels" -}}
{{ include "forebay.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: forebay
{{- end }}

{{/* The workers' StatefulSet. Its pods have its name and a hash of ten characters in a label, which has 63 at most. */}}
{{- define "forebay.workerName" -}}
{{ .Release.Name | trunc 45 | trimSuffix "-" }}-worker
{{- end }}

{{- define "forebay.pod" -}}
{{- $values := index .root.Values .tier -}}
enableServiceLinks: false
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ add 35 (div (int64 (default 25000 $values.settings.shutdown_timeout_ms)) 1000) }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a probe asks: Kubernetes accepts any certificate there. */}}
{{- define "forebay.listener" -}}
port: http{{ if (index .root.Values .tier).settings.tls_certificate_file }}, scheme: HTTPS{{ end }}
{{- end }}

{{- define "forebay.container" -}}
{{- $values := index .root.Values .tier -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
ports: [{ name: http, containerPort: 8080 }]
livenessProbe: { httpGet: { path: /livez, {{ include "forebay.listener" . }} }, periodSeconds: 10, timeoutSeconds: 5 }
readinessProbe: { httpGet: { path: /readyz, {{ include "forebay.listener" . }} }, periodSeconds: 2, timeoutSeconds: 2 }
resources:
  {{- toYaml $values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{/* The settings as environment variables. Helm reads numbers as floats, and would write large ones as 1e+06. */}}
{{- define "forebay.settings" -}}
{{- range $name, $value := (index .root.Values .tier).settings }}
{{- if not (kindIs "invalid" $value) }}
- name: FOREBAY_{{ upper $name }}
  {{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
  {{- else if kindIs "float64" $value }}
  value: {{ int64 $value | quote }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether a tier requires the tokens of the secret. */}}
{{- define "forebay.requiresTokens" -}}
{{- $settings := (index .root.Values .tier).settings -}}
{{- if not (or $settings.auth_tokens_file $settings.authenticator $settings.allow_anonymous) }}true{{ end }}
{{- end }}

{{- define "forebay.tokensSecret" -}}
{{ .Values.tokens.existingSecret | default (printf "%s-tokens" .Release.Name) }}
{{- end }}

{{/* The keys of the secret that a tier's pods see: its own file, and the tokens that are sent to workers. */}}
{{- define "forebay.tokenKeys" -}}
{{- $worker := include "forebay.requiresTokens" (dict "root" .root "tier" "worker") -}}
{{- if include "forebay.requiresTokens" . }}{{ .tier }}s {{ end }}
{{- if and (eq .tier "router") $worker (not .root.Values.router.settings.worker_token_file) }}router{{ end }}
{{- if and (eq .tier "worker") $worker (not .root.Values.worker.settings.snapshot_token_file) }}snapshots{{ end }}
{{- end }}

{{- define "forebay.tokenSettings" -}}
{{- $names := dict "router" "FOREBAY_WORKER_TOKEN_FILE" "snapshots" "FOREBAY_SNAPSHOT_TOKEN_FILE" }}
{{- range include "forebay.tokenKeys" . | trim | splitList " " | compact }}
- { name: {{ get $names . | default "FOREBAY_AUTH_TOKENS_FILE" }}, value: /etc/forebay/tokens/{{ . }} }
{{- end }}
{{- end }}

{{- define "forebay.secretMounts" -}}
{{- if include "forebay.tokenKeys" . | trim }}
- { name: tokens, mountPath: /etc/forebay/tokens, readOnly: true }
{{- end }}
{{- range .root.Values.secrets }}
- { name: "secret-{{ . }}", mountPath: "/etc/forebay/secrets/{{ . }}", readOnly: true }
{{- end }}
{{- end }}

{{- define "forebay.secretVolumes" -}}
{{- with include "forebay.tokenKeys" . | trim | splitList " " | compact }}
- name: tokens
  secret:
    secretName: {{ include "forebay.tokensSecret" $.root }}
    defaultMode: 0440
    items: [{{ range $i, $key := . }}{{ if $i }}, {{ end }}{ key: {{ $key }}, path: {{ $key }} }{{ end }}]
{{- end }}
{{- range .root.Values.secrets }}
- name: secret-{{ . }}
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end }}
