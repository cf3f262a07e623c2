{{/* The chart's name, for labels. */}}
{{- define "chronos.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/*
What objects are called. 40 characters at most: suffixes follow, and a name has 63. One that is longer is cut, and ends with a hash of the
whole: no two are the same. Dots are no part of a Service's name.
*/}}
{{- define "chronos.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := .Values.fullnameOverride }}
{{- if not $full }}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- end }}
{{- if gt (len $full) 40 }}
{{- printf "%s-%s" ($full | replace "." "-" | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) }}
{{- else }}
{{- $full | replace "." "-" }}
{{- end }}
{{- end }}

{{/* What objects without a namespace are called, and ours in namespaces that are not ours: no two releases share it. */}}
{{- define "chronos.wideName" -}}
{{- printf "%s.%s" (include "chronos.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "chronos.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "chronos.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Selects the pods that run chronosd, and no pod of a hook, a test or the trial's Postgres. Immutable in a Deployment: never add to it. */}}
{{- define "chronos.selector" -}}
app.kubernetes.io/name: {{ include "chronos.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of an object: (dict "root" $ "component" "…" "more" dict). Ours win: monitors and selectors go by them. */}}
{{- define "chronos.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "chronos.name" .root)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/part-of" "chronos"
  "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- with .component }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end }}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.commonLabels) (deepCopy (default dict .more)) $own) }}
{{- end }}

{{/*
Labels of a pod: (dict "root" $ "component" "…" "name" "…"). Without the chart's version: a new chart alone restarts nothing. Another
`name` keeps the pod out of what "chronos.selector" selects; with "facade" the facade's Service leads to it.
*/}}
{{- define "chronos.podLabels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (default (include "chronos.name" .root) .name)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/component" .component
  "app.kubernetes.io/part-of" "chronos"
  "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- if .facade }}{{ $_ := set $own "chronos.dev/facade" "true" }}{{ end }}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.commonLabels) (deepCopy .root.Values.podLabels) $own) }}
{{- end }}

{{- define "chronos.image" -}}
{{- $image := .Values.image }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* The Deployments of this release, as YAML: name, roles, replicas, resources of each. */}}
{{- define "chronos.workloads" -}}
{{- $full := include "chronos.fullname" . }}
{{- if eq .Values.mode "combined" }}
- {name: {{ $full | quote }}, component: combined, roles: [controller, dispatch, api], replicas: {{ .Values.replicas }}, resources: {{ toJson .Values.resources }}}
{{- else }}
{{- range $role := list "controller" "dispatch" "api" }}
{{- $own := index $.Values $role }}
- {name: "{{ $full }}-{{ $role }}", component: {{ $role }}, roles: [{{ $role }}], replicas: {{ $own.replicas }}, resources: {{ toJson (default $.Values.resources $own.resources) }}}
{{- end }}
{{- end }}
{{- end }}

{{/* ---- secrets ---- */}}

{{- define "chronos.trialSecret" -}}
{{ include "chronos.fullname" . }}-trial
{{- end }}

{{/*
Secrets and where they come from, as YAML: setting, file, secret and key of each. Fails for one that is needed and nowhere.
*/}}
{{- define "chronos.secrets" -}}
{{- $given := .Values.secrets }}
{{- $trial := .Values.postgres.trial.enabled }}
{{- if and $trial $given.postgresUri.existingSecret }}
{{- fail "postgres.trial.enabled and secrets.postgresUri.existingSecret are both set: the trial brings its own database. Set one of them" }}
{{- end }}
{{- $wanted := list
  (dict "value" "postgresUri" "file" "postgres-uri" "setting" "CHRONOS_POSTGRES_URI" "example" "postgres://user:password@host:5432/name")
  (dict "value" "token" "file" "token" "setting" "CHRONOS_TOKEN" "example" "$(openssl rand -hex 24)")
  (dict "value" "agentAuthSecret" "file" "agent-auth-secret" "setting" "CHRONOS_AGENT_AUTH_SECRET" "example" "$(openssl rand -hex 24)")
  (dict "value" "wakeToken" "file" "wake-token" "setting" "CHRONOS_WAKE_TOKEN" "example" "THE-TOKEN-OF-YOUR-ROUTER") }}
{{- $missing := list }}
{{- $sources := list }}
{{- range $wanted }}
  {{- $own := index $given .value }}
  {{- if $own.existingSecret }}
    {{- $sources = append $sources (dict "setting" .setting "file" .file "secret" $own.existingSecret "key" $own.key) }}
  {{- else if and $trial (or (eq .value "postgresUri") (not $given.existingSecret)) }}
    {{- $sources = append $sources (dict "setting" .setting "file" .file "secret" (include "chronos.trialSecret" $) "key" .file) }}
  {{- else if $given.existingSecret }}
    {{- $sources = append $sources (dict "setting" .setting "file" .file "secret" $given.existingSecret "key" $own.key) }}
  {{- else }}
    {{- $missing = append $missing . }}
  {{- end }}
{{- end }}
{{- if $missing }}
  {{- $names := list }}{{ $literals := list }}
  {{- range $missing }}
    {{- $names = append $names (printf "secrets.%s.existingSecret" .value) }}
    {{- $literals = append $literals (printf "--from-literal=%s=%s" .file .example) }}
  {{- end }}
  {{- fail (printf "secrets.existingSecret (or %s) is not set. Make a Secret and name it:\n\n  kubectl create secret generic chronos -n %s %s\n  helm … --set secrets.existingSecret=chronos\n\nTo try things out, postgres.trial.enabled=true makes a database and all of them%s" (join ", " $names) .Release.Namespace (join " " $literals) (ternary "" "\n\nrouter.wakeUrl is not set either" (ne .Values.router.wakeUrl ""))) }}
{{- end }}
{{- range list
  (dict "value" "wakeSigningSecret" "file" "wake-signing-secret" "setting" "CHRONOS_WAKE_SIGNING_SECRET")
  (dict "value" "timerSinkToken" "file" "timer-sink-token" "setting" "CHRONOS_TIMER_SINK_TOKEN") }}
  {{- $own := index $given .value }}
  {{- if $own.existingSecret }}
    {{- $sources = append $sources (dict "setting" .setting "file" .file "secret" $own.existingSecret "key" $own.key) }}
  {{- end }}
{{- end }}
{{- toYaml $sources }}
{{- end }}

{{/* ---- parts of pods ---- */}}

{{/* Settings that are values of this chart, and the value to use instead. */}}
{{- define "chronos.taken" -}}
CHRONOS_ROLES: mode
CHRONOS_POSTGRES_URI: secrets.postgresUri.existingSecret
CHRONOS_TOKEN: secrets.token.existingSecret
CHRONOS_AGENT_AUTH_SECRET: secrets.agentAuthSecret.existingSecret
CHRONOS_WAKE_TOKEN: secrets.wakeToken.existingSecret
CHRONOS_WAKE_SIGNING_SECRET: secrets.wakeSigningSecret.existingSecret
CHRONOS_TIMER_SINK_TOKEN: secrets.timerSinkToken.existingSecret
CHRONOS_ROUTER_WAKE_URL: router.wakeUrl
CHRONOS_TIMER_SINK_URL: timerSink.url
CHRONOS_WAKE_TIMEOUT_SECONDS: wakeTimeoutSeconds
CHRONOS_SHUTDOWN_SECONDS: wakeTimeoutSeconds
CHRONOS_DISPATCH_MODE: dispatchMode
CHRONOS_WATCH_NAMESPACES: watchNamespaces
CHRONOS_CLUSTER_NAME: clusterName
CHRONOS_NAMESPACE: the namespace of the release
CHRONOS_PORT: service.port
CHRONOS_METRICS_PORT: nothing, it is 9097
CHRONOS_TLS_CERT_PATH: tls.existingSecret
CHRONOS_TLS_KEY_PATH: tls.existingSecret
{{- end }}

{{/* Fails for values that cannot be. */}}
{{- define "chronos.check" -}}
{{- if not .Values.router.wakeUrl }}
{{- fail "router.wakeUrl is not set: say where wakes go, such as --set router.wakeUrl=http://router.agents.svc:8088/internal/wake" }}
{{- end }}
{{- $taken := include "chronos.taken" . | fromYaml }}
{{- range $name, $_ := .Values.settings }}
  {{- with get $taken $name }}{{ fail (printf "settings.%s: the chart sets it; use %s" $name .) }}{{ end }}
{{- end }}
{{- range .Values.extraEnv }}
  {{- $name := .name }}
  {{- with get $taken (trimSuffix "_FILE" $name) }}{{ fail (printf "extraEnv: %s is set by the chart; use %s" $name .) }}{{ end }}
  {{- if has $name (list "CHRONOS_BIND" "CHRONOS_LEASE_SECONDS") }}{{ fail (printf "extraEnv: %s would be there twice: give it as settings.%s" $name $name) }}{{ end }}
  {{- if hasKey $.Values.settings $name }}{{ fail (printf "extraEnv: %s is in settings, too; give it once" $name) }}{{ end }}
{{- end }}
{{- if and .Values.api.autoscaling.enabled (ne .Values.mode "separate") }}
{{- fail "api.autoscaling.enabled needs mode=separate: in mode combined every pod does everything" }}
{{- end }}
{{- $scaling := .Values.api.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- fail (printf "api.autoscaling.minReplicas is %d and maxReplicas %d: the least is more than the most" (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- if $scaling.enabled }}
{{- $resources := default .Values.resources .Values.api.resources }}
{{- if not (or (dig "requests" "cpu" "" $resources) (dig "limits" "cpu" "" $resources)) }}
{{- fail (printf "api.autoscaling.enabled needs a CPU request: targetCPUUtilizationPercentage is a share of it. Set %s.requests.cpu" (ternary "api.resources" "resources" (not (empty .Values.api.resources)))) }}
{{- end }}
{{- end }}
{{- if and .Values.admissionPolicy.enabled (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "admissionPolicy.enabled needs an account of chronos' own, which it lets pass; with serviceAccount.create=false and no serviceAccount.name that is \"default\", and with it every pod of the namespace. Set serviceAccount.name" }}
{{- end }}
{{- $lease := int (default 0 (get .Values.settings "CHRONOS_LEASE_SECONDS")) }}
{{- if and $lease (lt $lease (add 2 (int .Values.wakeTimeoutSeconds) | int)) }}
{{- fail (printf "settings.CHRONOS_LEASE_SECONDS is %d and must be at least wakeTimeoutSeconds + 2 = %d, or a delivery outlives its claim" $lease (add 2 (int .Values.wakeTimeoutSeconds))) }}
{{- end }}
{{- end }}

{{/* preStop 5 s, the wake timeout + 5 for deliveries in flight, 5 for everything else, 5 for the last traces, and 5 to spare. */}}
{{- define "chronos.gracePeriod" -}}
{{ add 25 (int .Values.wakeTimeoutSeconds) }}
{{- end }}

{{/* Secrets as files: list of environment variables. */}}
{{- define "chronos.secretEnv" -}}
{{- range include "chronos.secrets" . | fromYamlArray }}
- name: {{ .setting }}_FILE
  value: /etc/chronos/secrets/{{ .file }}
{{- end }}
{{- end }}

{{/* Everything that chronosd is told: (dict "root" $ "roles" list). */}}
{{- define "chronos.env" -}}
{{- $values := .root.Values }}
- name: CHRONOS_ROLES
  value: {{ join "," .roles }}
- name: CHRONOS_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- include "chronos.secretEnv" .root }}
- name: CHRONOS_ROUTER_WAKE_URL
  value: {{ $values.router.wakeUrl | quote }}
{{- with $values.timerSink.url }}
- name: CHRONOS_TIMER_SINK_URL
  value: {{ . | quote }}
{{- end }}
- name: CHRONOS_WAKE_TIMEOUT_SECONDS
  value: {{ $values.wakeTimeoutSeconds | int | quote }}
- name: CHRONOS_DISPATCH_MODE
  value: {{ $values.dispatchMode }}
{{- with $values.watchNamespaces }}
- name: CHRONOS_WATCH_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- with $values.clusterName }}
- name: CHRONOS_CLUSTER_NAME
  value: {{ . | quote }}
{{- end }}
{{- if and $values.tls.existingSecret (has "api" .roles) }}
- name: CHRONOS_TLS_CERT_PATH
  value: /etc/chronos/tls/tls.crt
- name: CHRONOS_TLS_KEY_PATH
  value: /etc/chronos/tls/tls.key
{{- end }}
{{- if not (hasKey $values.settings "CHRONOS_BIND") }}
- name: CHRONOS_BIND
  value: 0.0.0.0
{{- end }}
{{- /* A claim must outlive its delivery; 120 is the program's own default. */}}
{{- if and (gt (int $values.wakeTimeoutSeconds) 110) (not (hasKey $values.settings "CHRONOS_LEASE_SECONDS")) }}
- name: CHRONOS_LEASE_SECONDS
  value: {{ mul 2 (int $values.wakeTimeoutSeconds) | quote }}
{{- end }}
{{- range $name, $value := $values.settings }}
- name: {{ $name }}
  {{- if and (eq $name "CHRONOS_HINTS") (kindIs "bool" $value) }}
  {{- /* on and off without quotes are booleans in YAML. */}}
  value: {{ ternary "on" "off" $value | quote }}
  {{- else }}
  value: {{ ternary (printf "%v" $value) (toJson $value) (kindIs "string" $value) | quote }}
  {{- end }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "chronos.mounts" -}}
- name: secrets
  mountPath: /etc/chronos/secrets
  readOnly: true
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/chronos/tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "chronos.volumes" -}}
- name: secrets
  projected:
    defaultMode: 0444
    sources:
      {{- range include "chronos.secrets" . | fromYamlArray }}
      - secret:
          name: {{ .secret | quote }}
          items:
            - key: {{ .key | quote }}
              path: {{ .file }}
      {{- end }}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0444
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What every pod of ours says about where and as whom it runs. */}}
{{- define "chronos.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The port of a URL. */}}
{{- define "chronos.portOf" -}}
{{- $url := urlParse . }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- default (ternary "443" "80" (eq $url.scheme "https")) $port }}
{{- end }}
