{{/*
A manifest of files/ as scripts/install-dra-driver.sh renders its own: without comments in the first column, without the
blocks between "# >>> NAME" and "# <<< NAME" that are named, and with the values put in. What is in the files is never
a template itself.

  root     the chart's context
  file     below files/
  without  list of block names
  with     text in the file to what takes its place
*/}}
{{- define "neuron.manifest" -}}
{{- $text := .root.Files.Get (printf "files/%s" .file) -}}
{{- if not $text -}}
{{- fail (printf "the chart lacks files/%s: it was copied without following its links; use helm package" .file) -}}
{{- end -}}
{{- range $name := .without -}}
{{- $text = regexReplaceAll (printf "(?s)[^\n]*# >>> %s\n.*?# <<< %s\n" $name $name) $text "" -}}
{{- end -}}
{{- $text = regexReplaceAll "(?m)^ *# (>>>|<<<) .*\n" $text "" -}}
{{- $text = regexReplaceAll "(?m)^#.*\n" $text "" -}}
{{- range $from, $to := .with -}}
{{- $text = replace $from (toString $to) $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{- define "neuron.image" -}}
{{- $repository := required "image.repository is empty: set it to where the image of this project is" .Values.image.repository -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* The list of Neuron instance types, which daemonset.yaml of the DRA driver has. */}}
{{- define "neuron.instanceTypes" -}}
{{- regexFind "(?s) *- key: node.kubernetes.io/instance-type\n.*?\n *\\]\n" (.Files.Get "files/dra-driver/daemonset.yaml") -}}
{{- end -}}

{{/* Whether the cluster has ValidatingAdmissionPolicy, and tokens that are bound to nodes: "true" or "". */}}
{{- define "neuron.policies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end -}}

{{/* Whether DRA drivers can serve extended resources here, and shall: "true" or "". */}}
{{- define "neuron.extendedResources" -}}
{{- if and .Values.draDriver.extendedResources (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}

{{/* Whether the device plugin has nodes of its own: "true" or "". */}}
{{- define "neuron.devicePlugin" -}}
{{- if and .Values.devicePlugin.enabled (or (not .Values.draDriver.enabled) .Values.draDriver.nodeSelector) -}}true{{- end -}}
{{- end -}}

{{/* Of kube-scheduler: a scheduler must not be newer than the API server. */}}
{{- define "neuron.schedulerTag" -}}
{{- $server := .Capabilities.KubeVersion.Version -}}
{{- $tag := default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $server) .Values.scheduler.customScheduler.image.tag -}}
{{- $minor := "^v[0-9]+\\.[0-9]+" -}}
{{- if ne (regexFind $minor $tag) (regexFind $minor $server) -}}
{{- fail (printf "scheduler.customScheduler.image.tag is %q, but the API server is %s: use a tag of the same minor version" $tag $server) -}}
{{- end -}}
{{- $tag -}}
{{- end -}}

{{- define "neuron.tlsSecret" -}}
{{- default "k8s-neuron-scheduler-tls" .Values.scheduler.tls.existingSecret -}}
{{- end -}}

{{- define "neuron.tlsKeys" -}}
ca.crt client.crt client.key tls.crt tls.key
{{- end -}}

{{/*
CA, certificates and keys of the extender and of the schedulers that ask it, base64 in YAML: those of the release before,
else new ones. The CA's key is thrown away. Without a cluster to ask (helm template) they are new each time: see scheduler.tls.existingSecret.
*/}}
{{- define "neuron.tlsData" -}}
{{- $found := lookup "v1" "Secret" "kube-system" (include "neuron.tlsSecret" .) -}}
{{- $data := dict -}}
{{- if $found -}}
{{- $data = default (dict) $found.data -}}
{{- end -}}
{{- $keys := include "neuron.tlsKeys" . | splitList " " -}}
{{- $complete := true -}}
{{- range $key := $keys -}}
{{- $complete = and $complete (hasKey $data $key) -}}
{{- end -}}
{{- if not $complete -}}
{{- $name := "k8s-neuron-scheduler" -}}
{{- $names := list $name (printf "%s.kube-system" $name) (printf "%s.kube-system.svc" $name) (printf "%s.kube-system.svc.cluster.local" $name) "localhost" -}}
{{- $ca := genCA "k8s-neuron-scheduler-ca" 3650 -}}
{{- $made := genSignedCert (printf "%s.kube-system.svc" $name) (list "127.0.0.1") $names 3650 $ca -}}
{{- $client := genSignedCert "kube-scheduler" (list) (list) 3650 $ca -}}
{{- $data = dict "tls.crt" $made.Cert "tls.key" $made.Key "ca.crt" $ca.Cert "client.crt" $client.Cert "client.key" $client.Key -}}
{{- range $key := $keys -}}
{{- $_ := set $data $key (index $data $key | b64enc) -}}
{{- end -}}
{{- end -}}
{{- range $key := $keys }}
  {{ $key }}: {{ index $data $key }}
{{- end -}}
{{- end -}}
