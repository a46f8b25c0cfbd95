{{/*
What the templates need to exist, or that has a default, as values.yaml says it. helm upgrade --reuse-values takes all
values from the release before, and none from values.yaml: an older version of this chart, or AWS's chart of the same
name, does not have all keys.
*/}}
{{- define "neuron.defaults" -}}
createNamespaces: true
image: {pullPolicy: IfNotPresent}
kubeletRoot: /var/lib/kubelet
cdiRoot: /var/run/cdi
monitoring:
  podMonitor: {enabled: false}
  prometheusRule: {enabled: false}
  dashboard: {enabled: false}
networkPolicy: {enabled: false, apiServerPorts: [443, 6443]}
scheduler:
  enabled: false
  replicas: 2
  metricsPort: 9090
  resources: {requests: {cpu: 50m, memory: 128Mi}, limits: {memory: 512Mi}}
  tls: {enabled: true}
  customScheduler:
    enabled: true
    image: {repository: registry.k8s.io/kube-scheduler}
    resources: {requests: {cpu: 100m, memory: 64Mi}}
  defaultScheduler: {enabled: false, nodePort: 32700}
devicePlugin:
  enabled: true
  deviceInjection: nodes
  deviceNumbering: host
  visibleCoresVariable: NEURON_RT_VISIBLE_CORES
  healthPort: 51515
  resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {memory: 128Mi}}
draDriver:
  enabled: false
  force: {claimsInUse: false, podsWithLimits: false, secondDriver: false}
  presentLabel: true
  nodeStatus: true
  claimStatus: true
  ultraserverLabels: true
  viewerRoles: {enabled: true}
  parametersPolicy: {enabled: true}
  healthPort: 51515
  resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {memory: 128Mi}}
  placer:
    enabled: false
    replicas: 2
    groupTimeoutSeconds: 300
    healthPort: 51516
    resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 256Mi}}
ultraserverOperator:
  enabled: false
  crds: {create: true}
  editRole: {aggregate: false}
  claimController: system:serviceaccount:kube-system:resource-claim-controller
npd:
  enabled: false
  healthPort: 51515
  resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 128Mi}}
  nodeRecovery:
    enabled: false
    act: false
    cloudwatch: false
    replicas: 2
    healthPort: 51517
    metricsPort: 9090
    hook: {key: hook, timeoutSeconds: 60}
    resources: {requests: {cpu: 10m, memory: 96Mi}, limits: {memory: 256Mi}}
{{- end -}}

{{/* Puts the defaults that are missing into .Values. Each template begins with it. */}}
{{- define "neuron.complete" -}}
{{- include "neuron.fill" (dict "values" .Values "defaults" (include "neuron.defaults" . | fromYaml)) -}}
{{- if .Values.monitoring.podMonitor.enabled -}}
{{- /* What is to be scraped needs a port. */ -}}
{{- range list .Values.draDriver .Values.draDriver.placer .Values.devicePlugin .Values.scheduler .Values.npd .Values.npd.nodeRecovery -}}
{{- if not .metricsPort -}}{{- $_ := set . "metricsPort" 9100 -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "neuron.fill" -}}
{{- range $key, $default := .defaults -}}
{{- $found := get $.values $key -}}
{{- if or (not (hasKey $.values $key)) (kindIs "invalid" $found) -}}
{{- $_ := set $.values $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $found) -}}
{{- include "neuron.fill" (dict "values" $found "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The workloads, by where their values are.

  name       of the DaemonSet or Deployment
  base       what the names of its other objects begin with
  account    of the ServiceAccount
  namespace  where it is unless the user says otherwise
  label      key and value that select its pods: they cannot be changed in an installed release
  part       label app.kubernetes.io/component, and the end of the names with fullnameOverride
  root       kubelet's directories and those of the hints belong to root: being their owner is all that is needed of it
  group      fsGroup, for files of Secrets and tokens
*/}}
{{- define "neuron.workloads" -}}
devicePlugin:
  kind: DaemonSet
  name: neuron-device-plugin-daemonset
  base: neuron-device-plugin
  account: neuron-device-plugin
  namespace: kube-system
  label: [name, neuron-device-plugin-ds]
  part: device-plugin
  root: true
scheduler:
  kind: Deployment
  name: k8s-neuron-scheduler
  base: k8s-neuron-scheduler
  account: k8s-neuron-scheduler
  namespace: kube-system
  label: [app, neuron-scheduler]
  part: scheduler-extender
  group: true
scheduler.customScheduler:
  kind: Deployment
  name: my-scheduler
  base: my-scheduler
  account: my-scheduler
  namespace: kube-system
  label: [app, my-scheduler]
  part: scheduler
  group: true
draDriver:
  kind: DaemonSet
  name: neuron-dra-driver-kubelet-plugin
  base: neuron-dra-driver
  account: neuron-dra-driver-sa
  namespace: neuron-dra-driver
  label: [app, neuron-dra-driver-kubelet-plugin]
  part: dra-driver
  root: true
draDriver.placer:
  kind: Deployment
  name: neuron-dra-driver-placer
  base: neuron-dra-driver-placer
  account: neuron-dra-driver-placer
  namespace: neuron-dra-driver
  label: [app, neuron-dra-driver-placer]
  part: placer
npd:
  kind: DaemonSet
  name: neuron-node-problem-detector
  base: neuron-node-problem-detector
  account: neuron-node-problem-detector
  namespace: neuron-healthcheck-system
  label: [app, neuron-node-problem-detector]
  part: node-problem-detector
  root: true
npd.nodeRecovery:
  kind: Deployment
  name: neuron-node-recovery
  base: neuron-node-recovery
  account: neuron-node-recovery
  namespace: neuron-healthcheck-system
  label: [app, neuron-node-recovery]
  part: node-recovery
  group: true
{{- end -}}

{{/* The workloads that are installed, as a JSON object whose keys are theirs: "true" each. */}}
{{- define "neuron.installed" -}}
{{- $made := dict -}}
{{- if include "neuron.devicePlugin" . -}}{{- $_ := set $made "devicePlugin" true -}}{{- end -}}
{{- if .Values.scheduler.enabled -}}
{{- $_ := set $made "scheduler" true -}}
{{- if .Values.scheduler.customScheduler.enabled -}}{{- $_ := set $made "scheduler.customScheduler" true -}}{{- end -}}
{{- end -}}
{{- if .Values.draDriver.enabled -}}
{{- $_ := set $made "draDriver" true -}}
{{- end -}}
{{- if include "neuron.placer" . -}}{{- $_ := set $made "draDriver.placer" true -}}{{- end -}}
{{- if .Values.npd.enabled -}}{{- $_ := set $made "npd" true -}}{{- end -}}
{{- if .Values.npd.nodeRecovery.enabled -}}{{- $_ := set $made "npd.nodeRecovery" true -}}{{- end -}}
{{- toJson $made -}}
{{- end -}}

{{/* Whether the operator of UltraServers runs, which is a part of the placer: "true" or "". */}}
{{- define "neuron.operator" -}}
{{- if and .Values.draDriver.enabled .Values.ultraserverOperator.enabled -}}true{{- end -}}
{{- end -}}

{{/* Whether the placer's Deployment is there, by its own switch or by that of the operator: "true" or "". */}}
{{- define "neuron.placer" -}}
{{- if or (include "neuron.operator" .) (and .Values.draDriver.enabled .Values.draDriver.placer.enabled) -}}true{{- end -}}
{{- end -}}

{{/* The values of a workload, of this chart; dict "root" "of". As JSON. */}}
{{- define "neuron.valuesOf" -}}
{{- $values := .root.Values -}}
{{- range splitList "." .of -}}
{{- $values = get $values . -}}
{{- end -}}
{{- if and (eq .of "draDriver.placer") (include "neuron.operator" .root) -}}
{{- $values = include "neuron.withOperators" (dict "values" $values "more" .root.Values.ultraserverOperator) | fromJson -}}
{{- end -}}
{{- toJson $values -}}
{{- end -}}

{{/*
A workload of the table with what the values make of it: dict "root" "of". As JSON: kind, name, base, account, namespace,
part, own (key and value of the label), labels (app.kubernetes.io/*), selector, podLabels, and its values as `values`.
*/}}
{{- define "neuron.workload" -}}
{{- $root := .root -}}
{{- $made := get (include "neuron.workloads" $root | fromYaml) .of -}}
{{- $values := include "neuron.valuesOf" . | fromJson -}}
{{- $_ := set $made "of" .of -}}
{{- $_ := set $made "values" $values -}}
{{- $name := $made.name -}}
{{- with $root.Values.fullnameOverride -}}
{{- $name = printf "%s-%s" . $made.part | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- with $values.fullnameOverride -}}
{{- $name = . | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- if ne $name $made.name -}}
{{- $_ := set $made "name" $name -}}
{{- $_ := set $made "base" $name -}}
{{- $_ := set $made "account" $name -}}
{{- $_ := set $made "label" (list (first $made.label) $name) -}}
{{- end -}}
{{- $account := default (dict) $values.serviceAccount -}}
{{- $_ := set $made "createAccount" (ne (toString $account.create) "false") -}}
{{- if $account.name -}}
{{- $_ := set $made "account" $account.name -}}
{{- else if not $made.createAccount -}}
{{- fail (printf "%s.serviceAccount.create is false, so %s.serviceAccount.name must name the ServiceAccount that gets the permissions" .of .of) -}}
{{- end -}}
{{- $_ := set $made "accountAnnotations" (default (dict) $account.annotations) -}}
{{- $_ := set $made "namespace" (include "neuron.namespace" (dict "root" $root "default" $made.namespace "override" $values.namespaceOverride)) -}}
{{- $label := dict (first $made.label) (last $made.label) -}}
{{- $selector := default (dict) $values.selectorLabelsOverride -}}
{{- $found := lookup "apps/v1" $made.kind $made.namespace $made.name -}}
{{- if not $selector -}}
{{- $selector = $label -}}
{{- if $found -}}
{{- $selector = default $label $found.spec.selector.matchLabels -}}
{{- end -}}
{{- end -}}
{{- $_ := set $made "selector" $selector -}}
{{- $_ := set $made "own" $label -}}
{{- $called := default $root.Values.nameOverride $values.nameOverride | default $root.Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- $_ := set $made "labels" (dict "app.kubernetes.io/name" $called "app.kubernetes.io/component" $made.part) -}}
{{- /* Who takes over what the script has installed replaces no pod: what they are called there stays. */ -}}
{{- $instance := dig "spec" "template" "metadata" "labels" "app.kubernetes.io/instance" $root.Release.Name (default (dict) $found) -}}
{{- $standard := merge (dict "app.kubernetes.io/instance" $instance) $made.labels -}}
{{- $pods := merge (dict) $selector $label (default (dict) $values.podLabels) (default (dict) $root.Values.podLabels) $standard -}}
{{- $_ := set $made "podLabels" $pods -}}
{{- toJson $made -}}
{{- end -}}

{{/*
Where a workload is: its namespaceOverride, else that of the chart, else the release's, if the user has chosen one. Who
installs into default or kube-system has not: there, as without --namespace, each part has the namespace of its own.
*/}}
{{- define "neuron.namespace" -}}
{{- $chosen := .root.Release.Namespace -}}
{{- if has $chosen (list "default" "kube-system") -}}
{{- $chosen = .default -}}
{{- end -}}
{{- default (default $chosen .root.Values.namespaceOverride) .override -}}
{{- end -}}

{{/* Labels of an object of a workload: dict "root" "workload". */}}
{{- define "neuron.labels" -}}
{{- toYaml .workload.labels }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* metadata of an object of a workload: dict "root" "workload" "name", and "namespace" and "label" (its own). */}}
{{- define "neuron.metadata" -}}
name: {{ .name | quote }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels:
{{- if .label }}
  {{- toYaml .workload.own | nindent 2 }}
{{- end }}
{{- include "neuron.labels" . | nindent 2 }}
{{- end -}}

{{/* The service account of a workload, if it is made here: dict "root" "workload", and "annotations" and "noToken". */}}
{{- define "neuron.serviceAccount" -}}
{{- $annotations := merge (dict) (default (dict) .annotations) .workload.accountAnnotations -}}
{{- if .workload.createAccount }}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "neuron.metadata" (merge (dict "name" .workload.account "namespace" .workload.namespace) .) | nindent 2 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if .noToken }}
automountServiceAccountToken: false
{{- end }}
---
{{- end }}
{{- end -}}

{{/* The service account as the subject of a binding. */}}
{{- define "neuron.subject" -}}
- kind: ServiceAccount
  name: {{ .account | quote }}
  namespace: {{ .namespace | quote }}
{{- end -}}

{{/* The service account as the API server calls it in admission policies. */}}
{{- define "neuron.user" -}}
{{- printf "system:serviceaccount:%s:%s" .namespace .account -}}
{{- end -}}

{{/*
Whether an image, dict "repository" "tag", is one of AWS's chart, wherever it was copied to: it lacks the programs of
this project. It is known by its name, or by its tag. The name neuron-dra-driver is this project's, too: that image is
AWS's where AWS has it.
*/}}
{{- define "neuron.isOfAWS" -}}
{{- $repository := toString .repository -}}
{{- if regexMatch "(^|/)(neuron-(device-plugin|scheduler|node-recovery|ultraserver-operator|observer|monitor)|node-problem-detector)$" $repository -}}
true
{{- else if or (regexMatch "(^|/)neuron/neuron-[a-z-]+$" $repository) (include "neuron.isTagOfAWS" .tag) -}}
true
{{- end -}}
{{- end -}}

{{/* The image of a workload: dict "root" "workload". */}}
{{- define "neuron.image" -}}
{{- $top := .root.Values.image -}}
{{- $own := default (dict) .workload.values.image -}}
{{- $default := default .root.Chart.AppVersion $top.tag -}}
{{- if and $own.repository (not (include "neuron.isOfAWS" $own)) -}}
{{- include "neuron.reference" (dict "repository" $own.repository "tag" (default $default $own.tag) "digest" $own.digest) -}}
{{- else -}}
{{- $repository := $top.repository -}}
{{- if not $repository -}}
{{- $kept := ternary (printf "An upgrade drops the values of the release unless they\nare given again (see helm get values %s), or kept with --reuse-values.\n" .root.Release.Name) "" .root.Release.IsUpgrade -}}
{{- fail (printf "\n\nimage.repository is empty: set it to where the image of this project is, such as\n--set image.repository=registry.example/neuron-dra-driver. %s" $kept) -}}
{{- end -}}
{{- if include "neuron.isOfAWS" $top -}}
{{- fail (printf "image.repository is %s, which is AWS's image: set it to the repository of this project's image" $repository) -}}
{{- end -}}
{{- include "neuron.imageOfRelease" (dict "root" .root "image" $top) -}}
{{- $tag := $own.tag -}}
{{- if or $own.repository (include "neuron.isTagOfAWS" $tag) -}}
{{- $tag = "" -}}
{{- end -}}
{{- $digest := default (ternary "" $top.digest (not (empty $tag))) $own.digest -}}
{{- include "neuron.reference" (dict "repository" $repository "tag" (default $default $tag) "digest" $digest) -}}
{{- end -}}
{{- end -}}

{{/*
A release has its image in the values, by digest, and in an annotation, which no --reuse-values brings along from the
release before: its digest with the tag of this one would be the former image under the new name.
*/}}
{{- define "neuron.imageOfRelease" -}}
{{- with index (default (dict) .root.Chart.Annotations) "neuron.aws.com/image" -}}
{{- $parts := splitList "@" . -}}
{{- if and (eq (first $parts) $.image.repository) (not $.image.tag) $.image.digest (ne (last $parts) $.image.digest) -}}
{{- fail (printf "\n\nimage.digest is %s,\nand the image of version %s is %s.\nHelm has kept the values of the former chart: pass --reset-then-reuse-values in place of --reuse-values. For another\nimage, set image.tag too." $.image.digest $.root.Chart.AppVersion (last $parts)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Releases of AWS's components have four numbers. */}}
{{- define "neuron.isTagOfAWS" -}}
{{- if regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+$" (toString .) -}}true{{- end -}}
{{- end -}}

{{- define "neuron.reference" -}}
{{- printf "%s:%s" .repository .tag -}}{{- with .digest -}}{{- printf "@%s" . -}}{{- end -}}
{{- end -}}

{{/* The Neuron instance types. */}}
{{- define "neuron.instanceTypes" -}}
{{- $types := list
  "inf1.xlarge" "inf1.2xlarge" "inf1.6xlarge" "inf1.24xlarge"
  "inf2.xlarge" "inf2.8xlarge" "inf2.24xlarge" "inf2.48xlarge"
  "trn1.2xlarge" "trn1.32xlarge" "trn1n.32xlarge"
  "trn2.3xlarge" "trn2.48xlarge" "trn2u.48xlarge" "trn2n.48xlarge" "trn2e.48xlarge" "trn2p.48xlarge" "trn2eu.48xlarge"
  "trn2u-ac.24xlarge" "trn2es.48xlarge" "trn2en.24xlarge" "trn2-ac.24xlarge"
  "trn3.48xlarge" "trn3p.48xlarge" "trn3s.48xlarge" "trn3pd98.48xlarge" "trn3-dev0.48xlarge" "trn3-dev1.48xlarge"
  "trn3e.24xlarge" "trn3e-dev0.24xlarge" "trn3s-es.48xlarge" "trn3sn.48xlarge" "trn3sn-es.48xlarge" "trn3pd98.3xlarge"
  "trn3s-es.3xlarge" "trn3sn.3xlarge" "trn3sn-es.3xlarge" "trn3n.48xlarge" "trn3en.24xlarge"
-}}
{{- $made := $types -}}
{{- range $type := $types -}}
{{- /* SageMaker HyperPod */ -}}
{{- $made = append $made (printf "ml.%s" $type) -}}
{{- end -}}
{{- toJson (default $made .Values.neuronInstances) -}}
{{- end -}}

{{/* Whether the cluster has ValidatingAdmissionPolicy, and tokens that are bound to nodes: "true" or "". */}}
{{- define "neuron.policies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end -}}

{{/* Whether DRA drivers can serve extended resources here, and shall: "true" or "". */}}
{{- define "neuron.extendedResources" -}}
{{- if and .Values.draDriver.extendedResources (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}

{{/* The version of resource.k8s.io for what the chart makes. */}}
{{- define "neuron.resourceAPI" -}}
{{- $served := "v1beta1" -}}
{{- if semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version -}}
{{- $served = "v1" -}}
{{- else if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version -}}
{{- $served = "v1beta2" -}}
{{- end -}}
{{- default $served .Values.draDriver.resourceAPI -}}
{{- end -}}

{{/* Whether the device plugin has nodes of its own: "true" or "". */}}
{{- define "neuron.devicePlugin" -}}
{{- if and .Values.devicePlugin.enabled (or (not .Values.draDriver.enabled) .Values.draDriver.nodeSelector) -}}true{{- end -}}
{{- end -}}

{{/* The label that keeps device plugin and DRA driver apart: the driver's nodeSelector, as JSON; {} if there is none. */}}
{{- define "neuron.labelsOfDriver" -}}
{{- $labels := dict -}}
{{- if .Values.draDriver.enabled -}}
{{- $labels = default (dict) .Values.draDriver.nodeSelector -}}
{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* The image of kube-scheduler: a scheduler must not be newer than the API server. */}}
{{- define "neuron.schedulerImage" -}}
{{- $image := .Values.scheduler.customScheduler.image -}}
{{- $server := .Capabilities.KubeVersion.Version -}}
{{- $repository := $image.repository -}}
{{- $digest := $image.digest -}}
{{- if and $digest (not $image.tag) -}}
{{- fail (printf "scheduler.customScheduler.image.digest is %s without a tag: set image.tag to the version of that digest" $digest) -}}
{{- end -}}
{{- $tag := default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $server) $image.tag -}}
{{- $minor := "^v[0-9]+\\.[0-9]+" -}}
{{- $upstream := "registry.k8s.io/kube-scheduler" -}}
{{- $isOfEKS := or (contains "-eks-" $tag) (hasSuffix "/eks-distro/kubernetes/kube-scheduler" $repository) -}}
{{- $isOther := ne (regexFind $minor $tag) (regexFind $minor $server) -}}
{{- if or $isOther (and $isOfEKS (eq $repository $upstream)) -}}
{{- if $isOfEKS -}}
{{- /* AWS's chart has one of EKS Distro as its default, whatever the cluster is; upstream has none. */ -}}
{{- $repository = $upstream -}}
{{- $tag = regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $server -}}
{{- $digest = "" -}}
{{- else -}}
{{- fail (printf "scheduler.customScheduler.image.tag is %q, but the API server is %s: use a tag of the same minor version" $tag $server) -}}
{{- end -}}
{{- end -}}
{{- include "neuron.reference" (dict "repository" $repository "tag" $tag "digest" $digest) -}}
{{- end -}}

{{- define "neuron.schedulerTag" -}}
{{- include "neuron.schedulerImage" . | splitList "@" | first | splitList ":" | last -}}
{{- end -}}
