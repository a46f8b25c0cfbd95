{{/*
What the pods of all workloads have in common. Here and in the templates, `workload` is what neuron.workload makes.
*/}}

{{/* A list of the chart, then what the values add for all workloads, and for this one: dict "root" "workload" "key" "own". As JSON. */}}
{{- define "neuron.added" -}}
{{- $made := default (list) .own -}}
{{- range concat (default (list) (get .root.Values .key)) (default (list) (get .workload.values .key)) -}}
{{- $made = append $made . -}}
{{- end -}}
{{- toJson (uniq $made) -}}
{{- end -}}

{{/* metadata of the pods: dict "root" "workload", and "annotations" of the chart. */}}
{{- define "neuron.podMetadata" -}}
{{- $annotations := merge (dict) (default (dict) .annotations) (default (dict) .workload.values.podAnnotations) (default (dict) .root.Values.podAnnotations) -}}
labels:
  {{- toYaml .workload.podLabels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* updateStrategy of a DaemonSet or strategy of a Deployment: dict "workload", and "own", which it has unless it is told. */}}
{{- define "neuron.strategy" -}}
{{- $told := default .workload.values.strategy .workload.values.updateStrategy -}}
{{- $made := default .own $told -}}
{{- if and $told .own (eq (default "RollingUpdate" $told.type) "RollingUpdate") (not $told.rollingUpdate) -}}
{{- $made = .own -}}
{{- end -}}
{{- with $made -}}
{{ ternary "updateStrategy" "strategy" (eq $.workload.kind "DaemonSet") }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
affinity of a workload: dict "root" "workload", and "terms", a list of lists of expressions of which a node has to fulfil
one. What the values say of nodes is required as well; of other pods, it replaces what a Deployment has.
*/}}
{{- define "neuron.affinity" -}}
{{- $told := deepCopy (default (default (dict) .root.Values.affinity) .workload.values.affinity) -}}
{{- $own := default (list) .terms -}}
{{- if $own -}}
{{- $nodes := default (dict) $told.nodeAffinity -}}
{{- $required := default (dict) $nodes.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $terms := list -}}
{{- range $expressions := $own -}}
{{- range $term := default (list (dict)) $required.nodeSelectorTerms -}}
{{- $all := $expressions -}}
{{- range default (list) $term.matchExpressions -}}
{{- /* AWS's chart has a place for the instance types, which are among the expressions already. */ -}}
{{- if and (ne .key "__INSTANCE_TYPE_KEY__") (not (has . $all)) -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- $term = merge (dict "matchExpressions" $all) $term -}}
{{- $terms = append $terms (set $term "matchExpressions" $all) -}}
{{- end -}}
{{- end -}}
{{- $nodes = set $nodes "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $told = set $told "nodeAffinity" $nodes -}}
{{- end -}}
{{- if and (eq .workload.kind "Deployment") (not $told.podAntiAffinity) -}}
{{- $near := dict "labelSelector" (dict "matchLabels" .workload.own) "topologyKey" "kubernetes.io/hostname" -}}
{{- $apart := dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $near)) -}}
{{- $told = set $told "podAntiAffinity" $apart -}}
{{- end -}}
{{- toYaml $told -}}
{{- end -}}

{{/* The first expression of every term: not where there is no kubelet that runs plugins. */}}
{{- define "neuron.notServerless" -}}
{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate", "hybrid", "auto"]}
{{- end -}}

{{/*
Terms for neuron.affinity, as JSON: Neuron nodes without those of the DRA driver (whose labels have to differ in at least
one). On emulated nodes the type says nothing.
*/}}
{{- define "neuron.nodesOfPlugin" -}}
{{- $expressions := list (include "neuron.notServerless" . | fromJson) -}}
{{- if not .Values.emulate -}}
{{- $expressions = append $expressions (include "neuron.hasType" . | fromJson) -}}
{{- end -}}
{{- $terms := list -}}
{{- range $key, $value := include "neuron.labelsOfDriver" . | fromJson -}}
{{- $terms = append $terms (append $expressions (dict "key" $key "operator" "NotIn" "values" (list $value))) -}}
{{- end -}}
{{- toJson (dict "terms" (default (list $expressions) $terms)) -}}
{{- end -}}

{{/* The same for nodes of the driver, wherever the plugin is: those with its labels, or of the types. */}}
{{- define "neuron.nodesOfDetector" -}}
{{- $plain := list (include "neuron.notServerless" . | fromJson) -}}
{{- $labelled := $plain -}}
{{- range $key, $value := include "neuron.labelsOfDriver" . | fromJson -}}
{{- $labelled = append $labelled (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- $typed := $plain -}}
{{- if not .Values.emulate -}}
{{- $typed = append $typed (include "neuron.hasType" . | fromJson) -}}
{{- end -}}
{{- $terms := list $typed -}}
{{- if gt (len $labelled) 1 -}}
{{- $terms = ternary (list $typed $labelled) (list $labelled) .Values.devicePlugin.enabled -}}
{{- end -}}
{{- toJson (dict "terms" $terms) -}}
{{- end -}}

{{- define "neuron.hasType" -}}
{{- dict "key" "node.kubernetes.io/instance-type" "operator" "In" "values" (include "neuron.instanceTypes" . | fromJsonArray) | toJson -}}
{{- end -}}

{{/* Where pods may run although the node is kept for others. */}}
{{- define "neuron.tolerations" -}}
{{- if eq .kind "DaemonSet" }}
# Without the driver, kubelet can end no pod with a claim: it stays until the last one has left a tainted node.
- operator: Exists
{{- else }}
- key: CriticalAddonsOnly
  operator: Exists
# Where all nodes are for Neuron, schedulers and controllers run on those too.
- key: aws.amazon.com/neuron
  operator: Exists
  effect: NoSchedule
{{- end }}
{{- end -}}

{{/* A drain of nodes takes one pod of a Deployment at a time: dict "root" "workload" "replicas". */}}
{{- define "neuron.disruptionBudget" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "neuron.metadata" (merge (dict "name" .workload.name "namespace" .workload.namespace) .) | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- toYaml .workload.selector | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The pod's spec but for containers and volumes: dict "root" "workload", and "terms" and "nodeSelector" of the chart. */}}
{{- define "neuron.podSpec" -}}
{{- $values := .workload.values -}}
{{- $own := ternary (dict "runAsUser" 0 "runAsGroup" 0) (dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532) (default false .workload.root) -}}
{{- if .workload.group -}}
{{- $_ := set $own "fsGroup" 65532 -}}
{{- end -}}
{{- $_ := set $own "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- $security := merge (dict) (default (dict) $values.podSecurityContext) $own -}}
serviceAccountName: {{ .workload.account | quote }}
priorityClassName: {{ quote (default (ternary "system-node-critical" "system-cluster-critical" (eq .workload.kind "DaemonSet")) (default .root.Values.priorityClassName $values.priorityClassName)) }}
{{- with default .root.Values.runtimeClassName $values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- $secrets := list }}
{{- range include "neuron.added" (merge (dict "key" "imagePullSecrets") .) | fromJsonArray }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- with uniq $secrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
securityContext:
  {{- toYaml $security | nindent 2 }}
affinity:
  {{- include "neuron.affinity" . | nindent 2 }}
{{- with merge (dict) (default (dict) $values.nodeSelector) (default (dict) .root.Values.nodeSelector) }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
{{- $own := include "neuron.tolerations" .workload | fromYamlArray }}
{{- include "neuron.added" (merge (dict "key" "tolerations" "own" $own) .) | fromJsonArray | toYaml | nindent 0 }}
{{- end -}}

{{/*
A container but for its name, ports, probes and mounts: dict "root" "workload" "command", and "args", "env" (YAML) and
"capabilities" of the chart.
*/}}
{{- define "neuron.container" -}}
{{- $values := .workload.values -}}
{{- $args := default (list) .args -}}
{{- with include "neuron.verbosity" . -}}
{{- $args = append $args (printf "--v=%s" .) -}}
{{- end -}}
{{- $args = concat $args (default (list) $values.extraArgs) -}}
image: {{ default (include "neuron.image" .) .image }}
imagePullPolicy: {{ default .root.Values.image.pullPolicy (default (dict) $values.image).pullPolicy }}
command: {{ toJson .command }}
{{- with $args }}
args:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "neuron.env" . | fromYamlArray }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
    {{- with .capabilities }}
    add: {{ toJson . }}
    {{- end }}
  privileged: false
  readOnlyRootFilesystem: true
{{- with include "neuron.resources" .workload | fromJson }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}

{{- define "neuron.verbosity" -}}
{{- $told := .workload.values.logVerbosity -}}
{{- if kindIs "invalid" $told -}}
{{- $told = .root.Values.logVerbosity -}}
{{- end -}}
{{- if not (kindIs "invalid" $told) -}}
{{- int $told -}}
{{- end -}}
{{- end -}}

{{/*
Environment variables: those of the chart, then those of the values, but for names that the chart sets: they say where
the chart mounts what, and what it probes. Also not KUBECONFIG, since the pods have a service account and no such file.
*/}}
{{- define "neuron.env" -}}
{{- $own := default "" .env | fromYamlArray -}}
{{- with default .root.Values.logFormat .workload.values.logFormat -}}
{{- if ne $.workload.of "scheduler.customScheduler" -}}
{{- $own = append $own (dict "name" "LOG_FORMAT" "value" .) -}}
{{- end -}}
{{- end -}}
{{- $names := list "KUBECONFIG" -}}
{{- range $own -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $told := concat (default (list) .root.Values.env) (default (list) .workload.values.env) (default (list) .workload.values.extraEnvs) -}}
{{- /* The last one of a name counts. */ -}}
{{- $last := dict -}}
{{- range $told -}}
{{- $_ := set $last .name . -}}
{{- end -}}
{{- range $told -}}
{{- if not (has .name $names) -}}
{{- $names = append $names .name -}}
{{- $own = append $own (get $last .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $own -}}
{{- end -}}

{{/*
Resources, as JSON. A limit of some hundredths of a core, such as AWS's chart has for its programs, would stretch the
second that a program of this project takes to start to half a minute or more, and its probes would end it: it is left
out, and the notes say so.
*/}}
{{- define "neuron.resources" -}}
{{- $made := deepCopy (default (dict) .values.resources) -}}
{{- $limits := default (dict) $made.limits -}}
{{- if include "neuron.tooLittle" $limits.cpu -}}
{{- $limits = omit $limits "cpu" -}}
{{- $made = ternary (set $made "limits" $limits) (omit $made "limits") (not (empty $limits)) -}}
{{- end -}}
{{- toJson $made -}}
{{- end -}}

{{- define "neuron.tooLittle" -}}
{{- if regexMatch "^([0-9]{1,2}m|0?\\.0[0-9]*)$" (toString .) -}}true{{- end -}}
{{- end -}}

{{/* Environment variables that the API server fills in: "NAME path". */}}
{{- define "neuron.field" -}}
- name: {{ .name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ .path }}
{{- end -}}

{{/*
Where the health services listen: kubelet probes the pod's address, so the loopback address would not do; no other
address is opened.
*/}}
{{- define "neuron.healthEnv" -}}
- name: HEALTHCHECK_PORT
  value: {{ int .values.healthPort | quote }}
{{ include "neuron.field" (dict "name" "HEALTHCHECK_ADDRESS" "path" "status.podIP") }}
{{ include "neuron.field" (dict "name" "NODE_ADDRESS" "path" "status.hostIP") }}
{{- end -}}

{{- define "neuron.metricsEnv" -}}
{{- if .values.metricsPort }}
- name: METRICS_PORT
  value: {{ int .values.metricsPort | quote }}
{{- if .values.metricsAddress }}
- name: METRICS_ADDRESS
  value: {{ .values.metricsAddress | quote }}
{{- else }}
{{ include "neuron.field" (dict "name" "METRICS_ADDRESS" "path" "status.podIP") }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Variables for the settings that "neuron.settings" lists for a workload: dict "values" and "of", its name there. Those that
are empty are left out, and switches that are as the program has them anyway.
*/}}
{{- define "neuron.settingsEnv" -}}
{{- range get (include "neuron.settings" . | fromJson) .of }}
{{- $value := get $.values .value }}
{{- $text := ternary "" (toString $value) (kindIs "invalid" $value) }}
{{- if and $text .switch }}
{{- $text = ternary "on" "off" (eq $text "true") }}
{{- end }}
{{- if not (has $text (list "" .switch)) }}
- name: {{ .variable }}
  value: {{ $text | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Ports and the probe by gRPC: dict "workload" and "period", the seconds between probes. There is no probe of liveness: who
could keep it out would have the program killed. It watches itself, and ends when it hangs.
*/}}
{{- define "neuron.healthProbes" -}}
{{- $port := int .workload.values.healthPort -}}
ports:
- name: health
  containerPort: {{ $port }}
{{- with .workload.values.metricsPort }}
- name: metrics
  containerPort: {{ int . }}
{{- end }}
readinessProbe:
  grpc:
    port: {{ $port }}
    service: readiness
  periodSeconds: {{ .period }}
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{/* A ClusterRoleBinding or RoleBinding: dict "root" "workload" "name" "role", and "namespace" and "kind" of the role. */}}
{{- define "neuron.binding" -}}
{{- $role := default (ternary "Role" "ClusterRole" (not (empty .namespace))) .kind -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $role }}Binding
metadata:
  {{- include "neuron.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $role }}
  name: {{ .role | quote }}
subjects:
{{ include "neuron.subject" .workload }}
{{- end -}}

{{/* The binding of a ValidatingAdmissionPolicy to all that it matches: dict "root" "workload" "name". */}}
{{- define "neuron.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "neuron.metadata" . | nindent 2 }}
spec:
  policyName: {{ .name | quote }}
  validationActions: [Deny]
{{- end -}}

{{/*
A policy for who writes slices of the driver neuron.aws.com, with its binding: dict "root" "workload", and "isDriver",
whether the workload is that driver, for which others hold. The device plugin needs it, too: it ends where such a slice
says that the driver has the node.
*/}}
{{- define "neuron.ownPoolsPolicy" -}}
{{- $name := printf "%s-own-pools" .workload.base -}}
# The credentials of a kubelet can write slices of its node, too, in any pool: with a higher generation in the pool of
# another node, or with one device more, nothing of that node would be allocated any more. kubelet itself only deletes
# slices. Whoever is root on a node also has the tokens of all its pods, such as those of another DRA driver, which may be
# allowed to write slices of all nodes, or those of its own node whatever the driver and the pool.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "neuron.metadata" (dict "root" .root "workload" .workload "name" $name) | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [resource.k8s.io]
      apiVersions: [v1, v1beta2, v1beta1]
      resources: [resourceslices]
      operations: [CREATE, UPDATE]
      scope: '*'
  matchConditions:
  {{- if .isDriver }}
  # What holds for that is above.
  - name: is-not-the-driver
    expression: request.userInfo.username != "{{ include "neuron.user" .workload }}"
  {{- end }}
  # Who writes again what is there, as a migration of stored objects does, changes nothing. What metadata says counts, too:
  # a driver leaves a slice alone whose annotation names a newer instance, and an owner that is gone takes it along.
  - name: is-a-node-or-a-pod-of-one-with-a-slice-of-this-driver
    expression: >-
      object.spec.driver == 'neuron.aws.com' && (request.operation == 'CREATE' || object.spec != oldObject.spec ||
      object.metadata.?annotations != oldObject.metadata.?annotations ||
      object.metadata.?labels != oldObject.metadata.?labels ||
      object.metadata.?finalizers != oldObject.metadata.?finalizers ||
      object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences) &&
      ((has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups) ||
      request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('') != '')
  variables:
  - name: userNode
    expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
  validations:
  - reason: Forbidden
    expression: object.spec.pool.name.split('/')[0] == object.spec.?nodeName.orValue('')
    message: >-
      A node may write slices of the driver neuron.aws.com only to the pool of its own name, and to pools below it.
  - reason: Forbidden
    expression: variables.userNode == '' || object.spec.?nodeName.orValue('') == variables.userNode
    messageExpression: >-
      'A pod of node "' + variables.userNode + '" may write slices of the driver neuron.aws.com only with spec.nodeName "' +
      variables.userNode + '".'
---
{{ include "neuron.policyBinding" (dict "root" .root "workload" .workload "name" $name) }}
{{- end -}}

{{/*
A policy for mirror pods, with its binding: dict "root" "workload", "own", the labels of pods that no mirror pod may have,
each a dict of one key, and "groups", whether neither a name nor a label of a group is allowed. A kubelet may create
mirror pods in any namespace, with any labels. LeaderWorkerSet's affinity and all Services take them for pods like others:
with one, a compromised node could keep the scheduler from placing a group anywhere, or answer in the name of others.
*/}}
{{- define "neuron.mirrorPodsPolicy" -}}
{{- $name := printf "%s-mirror-pods" .workload.base -}}
{{- $own := list -}}
{{- range .own -}}
{{- range $key, $value := . -}}{{- $own = append $own (printf "%s=%s" $key $value) -}}{{- end -}}
{{- end -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "neuron.metadata" (dict "root" .root "workload" .workload "name" $name) | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      resources: [pods]
      operations: [CREATE]
      scope: '*'
  matchConditions:
  - name: is-a-node
    expression: has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups
  variables:
  - name: labels
    expression: object.metadata.?labels.orValue({})
  validations:
  {{- if .groups }}
  - reason: Forbidden
    expression: >-
      !variables.labels.exists(k, k.startsWith('leaderworkerset.sigs.k8s.io/') ||
      k == 'neuron.aws.com/ultraserver-group')
    message: >-
      A static pod is of no group: leave the labels leaderworkerset.sigs.k8s.io/* and neuron.aws.com/ultraserver-group
      out of its file.
  # Where it is set, the pod has a name in the domain of a Service.
  - reason: Forbidden
    expression: object.spec.?subdomain.orValue('') == ''
    message: >-
      A static pod has no name in the domain of a group: leave spec.subdomain out of its file.
  {{- end }}
  - reason: Forbidden
    expression: >-
      !variables.labels.exists(k, k + '=' + variables.labels[k] in ['{{ join "', '" $own }}'])
    message: >-
      A static pod is none of another workload: leave the label {{ join " or " $own }} out of its file.
---
{{ include "neuron.policyBinding" (dict "root" .root "workload" .workload "name" $name) }}
{{- end -}}

{{/*
A policy for what an elected controller creates, with its binding: dict "root" "workload", "own", the name of its lease,
of its ConfigMap and as the source of its events, and "about", the kinds of objects that its events are about, if it
writes any. RBAC cannot give the right to create under one name only: without the policy, a controller that was taken
over could make ConfigMaps that other programs read, and take the names of others' leases and events.
*/}}
{{- define "neuron.ownObjectsPolicy" -}}
{{- $name := printf "%s-own-objects" .workload.base -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "neuron.metadata" (dict "root" .root "workload" .workload "name" $name) | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      resources: [configmaps, events]
      operations: [CREATE, UPDATE, DELETE]
      scope: '*'
    - apiGroups: [coordination.k8s.io]
      apiVersions: [v1]
      resources: [leases]
      operations: [CREATE, UPDATE, DELETE]
      scope: '*'
  matchConditions:
  - name: is-the-controller
    expression: request.userInfo.username == "{{ include "neuron.user" .workload }}"
  variables:
  - name: isEvent
    expression: request.resource.resource == 'events'
  - name: event
    expression: >-
      request.operation == 'CREATE' && variables.isEvent ? dyn(object) : dyn({})
  - name: about
    expression: variables.event.?involvedObject.?name.orValue('')
  - name: prefix
    expression: >-
      variables.about.find('^.{0,199}[^-.]') + '.'
  validations:
  - reason: Forbidden
    expression: >-
      request.operation != 'DELETE' && (variables.isEvent || object.metadata.name == '{{ .own }}')
    message: This service account may write only leases and ConfigMaps that are named {{ .own }}, and delete nothing.
  - reason: Forbidden
    expression: >-
      request.operation != 'DELETE' && !has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)
    message: This service account may give what it writes neither finalizers nor owners.
  # As the program names them (kube/api/events.py), and every version before it.
  - reason: Forbidden
    expression: >-
      !variables.isEvent ||
      {{- if .about }} (
      variables.event.?involvedObject.?kind.orValue('') in [{{ range $i, $kind := .about }}{{ if $i }}, {{ end }}'{{ $kind }}'{{ end }}] &&
      !has(variables.event.related) &&
      variables.event.?source.?component.orValue('') == '{{ .own }}' &&
      variables.event.?reportingComponent.orValue('') == '{{ .own }}' &&
      object.metadata.name.startsWith(variables.prefix) &&
      object.metadata.name.substring(size(variables.prefix)).matches('^[0-9a-f]{16}$'))
      {{- else }} false
      {{- end }}
    message: >-
      {{- if .about }}
      This service account may create only events of the component {{ .own }} about a {{ join " or a " .about }}, named
      after it and 16 hexadecimal digits.
      {{- else }}
      This service account may write no events.
      {{- end }}
---
{{ include "neuron.policyBinding" (dict "root" .root "workload" .workload "name" $name) }}
{{- end -}}
