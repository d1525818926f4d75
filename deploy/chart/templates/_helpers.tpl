{{- define "berth.labels" -}}
app.kubernetes.io/part-of: berth
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Name, namespace and labels; call with (list $ NAME). */}}
{{- define "berth.metadata" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $.Release.Namespace }}
labels: {{- include "berth.labels" $ | nindent 2 }}
{{- end }}

{{- define "berth.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "berth.configuration" -}}
{{- $configuration := deepCopy .Values.scheduler.configuration -}}
{{- if ne .Release.Namespace "berth" -}}
{{- $leases := dict "leaderElection" (dict "resourceNamespace" .Release.Namespace) -}}
{{- $configuration = mergeOverwrite $leases $configuration -}}
{{- end -}}
{{- toYaml $configuration -}}
{{- end }}

{{- define "berth.natsUrl" -}}
{{- if eq .Values.nats.mode "single" -}}
nats://nats:4222
{{- else if eq .Values.nats.mode "cluster" -}}
tls://nats-0.nats:4222,tls://nats-1.nats:4222,tls://nats-2.nats:4222
{{- else -}}
{{- required "nats.external.url: with nats.mode external, give the address of your NATS servers" .Values.nats.external.url -}}
{{- end -}}
{{- end }}

{{- define "berth.natsReplicas" -}}
{{- if eq .Values.nats.mode "single" -}} 1 {{- else if eq .Values.nats.mode "cluster" -}} 3 {{- else -}} {{ .Values.nats.external.replicas }} {{- end -}}
{{- end }}

{{/* Whether services are NATS users; empty for no. */}}
{{- define "berth.natsUsers" -}}
{{- if or (eq .Values.nats.mode "cluster") (and (eq .Values.nats.mode "external") .Values.nats.external.users) -}} true {{- end -}}
{{- end }}

{{/* A NATS user's variables; call with (list $ USER). Users outside of the account with the streams reach them by a domain. */}}
{{- define "berth.natsEnv" -}}
{{- $ := index . 0 -}}
{{- $user := index . 1 -}}
{{- if include "berth.natsUsers" $ }}
{{- $prefix := get $.Values.settings "BERTH_NATS_PREFIX" }}
{{- $name := $user }}
{{- if $prefix }}{{ $name = printf "%s-%s" $prefix $user }}{{ end }}
- {name: BERTH_NATS_USER, value: {{ $name }}}
- {name: BERTH_NATS_PASSWORD_FILE, value: /run/berth/nats/password}
- {name: BERTH_NATS_CA_FILE, value: /run/berth/nats/ca.crt}
{{- if or $prefix (ne $user "people") }}
- {name: BERTH_NATS_INBOX_PREFIX, value: _INBOX_{{ $name }}}
{{- end }}
{{- if has $user (list "scorer" "collector" "shadow" "people") }}
- {name: BERTH_NATS_DOMAIN, value: berth}
{{- end }}
{{- end }}
{{- end }}

{{/* A change of what the pods read is a rollout. */}}
{{- define "berth.checksums" -}}
checksum/configuration: {{ include "berth.configuration" . | sha256sum }}
checksum/settings: {{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum }}
{{- end }}

{{- define "berth.replicas" -}}
labelSelector:
  matchLabels: {app.kubernetes.io/name: berth, app.kubernetes.io/component: {{ . }}}
matchLabelKeys: [pod-template-hash]
{{- end }}

{{- define "berth.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "berth.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "berth.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "berth.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}  # does not answer when the event loop hangs
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}  # a standby is ready
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/*
The pod of a program of berth's image. Call with a dict: root, name (of the container and its component), command, user (of
NATS), account, resources, and for what differs: token, args, configuration (name of a ConfigMap), env, mounts, volumes, port
(name and number of the probed one), init.
*/}}
{{- define "berth.podSpec" -}}
{{- $ := .root -}}
{{- $users := include "berth.natsUsers" $ -}}
{{- $port := .port | default (dict "name" "health" "number" 10259) -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: {{ .token | default false }}
terminationGracePeriodSeconds: 15  # a service ends within 10 s, even when something hangs
enableServiceLinks: false  # a Service called berth-... would set variables that begin like berth's own
{{- with include "berth.placement" $ }}
{{- . | nindent 0 }}
{{- end }}
securityContext: {{- include "berth.podSecurity" 65532 | nindent 2 }}
{{- if .keepsOwner }}
  fsGroupChangePolicy: OnRootMismatch  # else each start gives the group what is in the volume
{{- end }}
{{- if or .init $.Values.plugins }}
initContainers:
{{- with .init }}
{{- . | nindent 0 }}
{{- end }}
{{- range $.Values.plugins }}
- name: plugin-{{ .name }}
  image: {{ .image }}
  command: [cp, -r, /plugins/., /opt/plugins]
  securityContext: {{- include "berth.containerSecurity" $ | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  volumeMounts:
  - {name: plugins, mountPath: /opt/plugins}
{{- end }}
{{- end }}
containers:
- name: {{ .name }}
  image: {{ include "berth.image" $ }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command: {{ .command | toJson }}
  {{- with .args }}
  args: {{ . | toJson }}
  {{- end }}
  securityContext: {{- include "berth.containerSecurity" $ | nindent 4 }}
  envFrom:
  - configMapRef: {name: berth-settings}
  env:
  - {name: BERTH_CONFIG, value: /etc/kubernetes/berth/scheduler.yaml}
  {{- with include "berth.natsEnv" (list $ .user) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $.Values.plugins }}
  - {name: PYTHONPATH, value: /opt/plugins}
  {{- end }}
  {{- range .env }}
  - {{ toJson . }}
  {{- end }}
  ports:
  - {name: {{ $port.name }}, containerPort: {{ $port.number }}}
  {{- include "berth.probes" $port.name | nindent 2 }}
  resources: {{- toYaml .resources | nindent 4 }}
  volumeMounts:
  - {name: configuration, mountPath: /etc/kubernetes/berth, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if $users }}
  - {name: nats, mountPath: /run/berth/nats, readOnly: true}
  {{- end }}
  {{- if $.Values.plugins }}
  - {name: plugins, mountPath: /opt/plugins, readOnly: true}
  {{- end }}
  {{- range .mounts }}
  - {{ toJson . }}
  {{- end }}
volumes:
- name: configuration
  configMap: {name: {{ .configuration | default "berth-configuration" }}}
- name: tmp
  emptyDir: {sizeLimit: 16Mi}
{{- if $users }}
- name: nats
  secret: {secretName: berth-nats-{{ .user }}, defaultMode: 0440}
{{- end }}
{{- if $.Values.plugins }}
- name: plugins
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- range .volumes }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{/* A Deployment of one of the four services. Call with a dict: root, name, values, user, and for what differs: token,
spread (whenUnsatisfiable of nodes), scales, init, env, mounts, volumes. */}}
{{- define "berth.service" -}}
{{- $ := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: berth-{{ .name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    app.kubernetes.io/name: berth
    app.kubernetes.io/component: {{ .name }}
    {{- include "berth.labels" $ | nindent 4 }}
spec:
  {{- if not .scales }}
  replicas: {{ .values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector:
    matchLabels: {app.kubernetes.io/name: berth, app.kubernetes.io/component: {{ .name }}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: berth, app.kubernetes.io/component: {{ .name }}}
      annotations: {{- include "berth.checksums" $ | nindent 8 }}
    spec:
      {{- with $.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      topologySpreadConstraints:
      - topologyKey: kubernetes.io/hostname
        maxSkew: 1
        whenUnsatisfiable: {{ .spread | default "ScheduleAnyway" }}
        nodeTaintsPolicy: Honor
        {{- include "berth.replicas" .name | nindent 8 }}
      - topologyKey: topology.kubernetes.io/zone
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        {{- include "berth.replicas" .name | nindent 8 }}
      {{- $pod := dict "root" $ "name" .name "command" (list (printf "berth-%s" .name)) "user" .user }}
      {{- $pod = merge $pod (dict "account" (printf "berth-%s" .name) "resources" .values.resources) }}
      {{- include "berth.podSpec" (merge $pod (pick . "token" "init" "env" "mounts" "volumes")) | nindent 6 }}
{{- end }}
