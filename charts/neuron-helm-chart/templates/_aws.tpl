{{/*
What values of AWS's chart of the same name have no meaning here: one a line, "  KEY" or "  KEY: why"; empty if there are
none. They are accepted, since people have them in their files, and named in the notes.
*/}}
{{- define "neuron.withoutEffect" -}}
{{- $lines := list -}}
{{- $installed := include "neuron.installed" . | fromJson -}}
{{- range $of, $_ := $installed -}}
{{- $workload := include "neuron.workload" (dict "root" $ "of" $of) | fromJson -}}
{{- $values := $workload.values -}}
{{- range list "securityContext" "volumes" "volumeMounts" "livenessProbe" "readinessProbe" -}}
{{- if get $values . -}}
{{- $lines = append $lines (printf "  %s.%s" $of .) -}}
{{- end -}}
{{- end -}}
{{- $image := default (dict) $values.image -}}
{{- if eq $of "scheduler.customScheduler" -}}
{{- if and $image.tag (not (hasPrefix (printf "%s:%s" $image.repository $image.tag) (include "neuron.schedulerImage" $))) -}}
{{- $lines = append $lines (printf "  %s.image: EKS Distro's, of another minor version than the cluster, or not in this registry" $of) -}}
{{- end -}}
{{- else if include "neuron.isOfAWS" $image -}}
{{- $lines = append $lines (printf "  %s.image: AWS's image; image.repository says where that of this project is" $of) -}}
{{- end -}}
{{- if include "neuron.tooLittle" (dig "resources" "limits" "cpu" "" $values) -}}
{{- $lines = append $lines (printf "  %s.resources.limits.cpu: the pod could not start in time" $of) -}}
{{- end -}}
{{- $own := list "KUBECONFIG" -}}
{{- if ne $of "scheduler.customScheduler" -}}
{{- range include (printf "neuron.env.%s" $of) $ | fromYamlArray -}}
{{- $own = append $own .name -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range concat (default (list) $values.env) (default (list) $values.extraEnvs) -}}
{{- if has .name $own -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- with $names | uniq -}}
{{- $lines = append $lines (printf "  %s.env: %s are the chart's own" $of (join ", " .)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.scheduler.enabled -}}
{{- range list "nodeSelector" "tolerations" -}}
{{- if get $.Values.scheduler.defaultScheduler . -}}
{{- $lines = append $lines (printf "  scheduler.defaultScheduler.%s: every node has the port of the extender, so it can run on any" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or .Values.npd.enabled .Values.npd.nodeRecovery.enabled -}}
{{- if .Values.npd.config -}}
{{- $lines = append $lines "  npd.config: the detector knows the lines of the kernel log itself" -}}
{{- end -}}
{{- if .Values.npd.nodeProblemDetector -}}
{{- $lines = append $lines "  npd.nodeProblemDetector: the detector is a program of this project" -}}
{{- end -}}
{{- range list "counters" "startupDelaySeconds" -}}
{{- if get $.Values.npd.nodeRecovery . -}}
{{- $lines = append $lines (printf "  npd.nodeRecovery.%s: see npd.nodeRecovery.policy" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $force := dict "root" . "force" .Values.draDriver.force -}}
{{- range list "claimsInUse" "podsWithLimits" -}}
{{- with include "neuron.formerForce" (merge (dict "name" .) $force) -}}
{{- $lines = append $lines (printf "  %s" (trimSuffix "." (trim .))) -}}
{{- end -}}
{{- end -}}
{{- with .Values.ultraserverOperator -}}
{{- if include "neuron.operator" $ -}}
{{- range list "image" "resources" "serviceAccount" "healthPort" "metricsPort" "nameOverride" "fullnameOverride" "namespaceOverride" -}}
{{- if get $.Values.ultraserverOperator . -}}
{{- $lines = append $lines (printf "  ultraserverOperator.%s: draDriver.placer.%s counts, since the placer is the operator" . .) -}}
{{- end -}}
{{- end -}}
{{- if .verbosity -}}
{{- $lines = append $lines "  ultraserverOperator.verbosity: draDriver.placer.logVerbosity counts" -}}
{{- end -}}
{{- if eq (toString .leaderElect) "false" -}}
{{- $lines = append $lines "  ultraserverOperator.leaderElect: of its replicas, one always leads" -}}
{{- end -}}
{{- else if .enabled -}}
{{- $lines = append $lines "  ultraserverOperator.enabled: it needs draDriver.enabled=true" -}}
{{- end -}}
{{- end -}}
{{- if .Values.observer -}}
{{- $lines = append $lines "  observer" -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/*
The values of the placer with what AWS's chart has for the pods of its operator, which are the same pods here: dict
"values" "more". As JSON. Lists are added, of labels and the like the placer's win.
*/}}
{{- define "neuron.withOperators" -}}
{{- $made := deepCopy .values -}}
{{- $more := .more -}}
{{- range list "imagePullSecrets" "tolerations" -}}
{{- $_ := set $made . (concat (default (list) (get $made .)) (default (list) (get $more .))) -}}
{{- end -}}
{{- range list "nodeSelector" "podAnnotations" "podSecurityContext" -}}
{{- $_ := set $made . (merge (dict) (default (dict) (get $made .)) (default (dict) (get $more .))) -}}
{{- end -}}
{{- if and $more.affinity (not $made.affinity) -}}
{{- $_ := set $made "affinity" $more.affinity -}}
{{- end -}}
{{- toJson $made -}}
{{- end -}}
