#!/usr/bin/env bash
# Installs the Neuron DRA driver into the cluster of the current kubectl context.
#
# Usage: install-dra-driver.sh [options] IMAGE
#        install-dra-driver.sh --uninstall [options]
#        install-dra-driver.sh --verify [options] IMAGE
#
#   IMAGE                the driver's container image, preferably with a digest or a tag that is never reused
#   --emulate TYPE       emulate instances of TYPE, such as trn2.48xlarge; the driver then runs on every node
#   --emulated-ultraservers SxN
#                        with --emulate: group the nodes into S UltraServers of N nodes, such as 2x4, by the number at the
#                        end of a node's name: node-1 to node-4 form the first server
#   --devices WORDS      what each node offers, one or more of chip, core, group, group4 (or another size), node; such
#                        as chip,core (default: chips, or what ULTRASERVER_LAYOUT says; a Node's label
#                        neuron.aws.com/devices overrules both for that node)
#   --extended-resources serve limits such as aws.amazon.com/neuron, neuroncore and neuron-4 of unchanged pods from the
#                        driver's devices; needs Kubernetes 1.36
#   --node-selector K=V  run on the nodes with this label instead of on the known instance types
#   --kubelet-root DIR   kubelet's root directory on the nodes (default /var/lib/kubelet)
#   --placer             also run the placer, which keeps groups of pods on UltraServers from blocking each other
#   --group-timeout S    with --placer: seconds after which a group that lacks nodes is recreated elsewhere
#                        (default 300)
#   --toleration T       run on nodes with this taint, too: KEY=VALUE:EFFECT, KEY:EFFECT, KEY, or * for all (driver and
#                        placer)
#   --image-pull-secret NAME
#                        a Secret of the namespace neuron-dra-driver with the registry's credentials (driver and placer)
#   --env NAME=VALUE     a setting of the driver that has no option here, such as CONTIGUITY_POLICY=refuse
#   --resources LIST     requests and limits of the driver instead of the default ones, such as
#                        requests.cpu=50m,requests.memory=64Mi,limits.memory=256Mi
#   --values FILE        take options from a file of lines such as "devices: chip,core"; those of the command line
#                        prevail
#   --restart            replace the driver's pods even if nothing changed (a new image was loaded under the same name)
#   --reset              for settings that you do not pass, use the defaults instead of the installed values
#   --verify             install nothing: check by a Job on one node of each instance type that hosts are as the driver
#                        assumes (dra-driver verify-host), and write verify-TYPE.json for each into this directory
#   --uninstall          remove the driver; refuses while pods use its devices, unless you pass --force
#   --force              uninstall, or leave nodes, even if pods use devices: they stay Terminating until the driver is
#                        back; or install beside claims with the device names of the beta of AWS's driver
#   --dry-run            print the YAML of a first installation (with --uninstall: the commands) without using a cluster
#   --resource-api V     v1, v1beta2 or v1beta1 of resource.k8s.io for the DeviceClasses (default: what the cluster
#                        serves)
#   --timeout SECONDS    how long to wait for the driver to be ready (default 300)
#   --kubectl COMMAND    kubectl with its leading arguments, such as "kubectl --context test" (default $KUBECTL or
#                        kubectl)
#   --yes, -y            do not ask for confirmation (without a terminal, the script never asks)
#   --help, -h           print this text
#
# You can run the script again safely; it changes only what differs. An update keeps the installed values of the
# settings from --emulate to --resources unless you pass them, and is refused if it would stop the driver on a node whose
# devices are in use by pods. If a placer is installed, it is updated to the new image too. --toleration,
# --image-pull-secret and --env can be given several times; together they replace what is installed of that option.
# Exit status: 0 done, 1 failed or refused, 2 invalid arguments.
# Works with the bash 3.2 and the sed of macOS, too.
set -euo pipefail

NAMESPACE='neuron-dra-driver'
DAEMONSET='neuron-dra-driver-kubelet-plugin'
DRIVER='neuron.aws.com'
OPTIONS='neuron.aws.com/install-options'
POLICIES=(neuron-dra-driver-own-slices neuron-dra-driver-own-node neuron-dra-driver-own-events)
PLACER='neuron-dra-driver-placer'
LISTS='--toleration --image-pull-secret --env'
CUT='(chip|core|node|group([2-9]|[1-9][0-9]{1,2})?)'
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MANIFESTS=$HERE/manifests
MARKS='/# >>> /d;/# <<< /d'
PART='[a-z0-9]([a-z0-9.-]*[a-z0-9])?'
RESOURCE='(requests|limits)\.(cpu|memory|ephemeral-storage)=[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?'
KEY="($PART/)?[A-Za-z0-9][A-Za-z0-9._-]*"

# In variables, because inside of ${...//...} bash 3.2 does not always know them.
NEWLINE=$'\n'
QUOTE="'"

# Empty: not given. Of what can be given several times: a line each.
image='' emulate='' ultraservers='' devices='' extended='' node_selector='' kubelet_root='' placer='' group_timeout=''
tolerations='' pull_secrets='' env='' resources='' resource_api='' values='' place='' given=' '
timeout=300 classes='' restart='' reset='' uninstall='' verify='' force='' dry_run='' yes='' with_policy=1 desired=0
kubectl_command=${KUBECTL:-kubectl}

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; }
note() { printf '%s\n' "$*" >&2; }
lines() { printf '%s\n' "$@" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
unknown() { die "cannot find out $1 (see above). Nothing was changed"; }
bad_arguments() {
    printf 'error: %s%s\nTry --help.\n' "$place" "$*" >&2
    exit 2
}
kube() { "${KUBE[@]}" "$@"; }

# matches NAME VALUE REGEX HINT: the values go into YAML, so nothing but the expected characters may pass.
matches() { [[ $2 =~ $3 ]] || bad_arguments "$1 '$2' is not valid; $4"; }

parse() {
    while [[ $# -gt 0 ]]; do
        case $1 in
        --emulate | --emulated-ultraservers | --node-selector | --kubelet-root | --resource-api | --timeout | --kubectl | \
            --group-timeout | --devices | --toleration | --image-pull-secret | --env | --resources | --values)
            [[ $# -gt 1 ]] || bad_arguments "$1 needs a value"
            given+="$1 "
            set_option "$1" "$2"
            shift
            ;;
        --*=*)
            given+="${1%%=*} "
            set_option "${1%%=*}" "${1#*=}"
            ;;
        --restart) restart=1 ;;
        --placer) placer=1 ;;
        --extended-resources) extended=1 ;;
        --reset) reset=1 ;;
        --uninstall) uninstall=1 ;;
        --verify) verify=1 ;;
        --force) force=1 ;;
        --dry-run) dry_run=1 ;;
        --yes | -y) yes=1 ;;
        --help | -h)
            usage
            exit 0
            ;;
        -*) bad_arguments "there is no option $1" ;;
        *)
            [[ -z $image ]] || bad_arguments "one image expected, got '$image' and '$1'"
            image=$1
            ;;
        esac
        shift
    done
    if [[ -n $values ]]; then
        [[ -z $uninstall ]] || bad_arguments "--values goes with an installation, not with --uninstall"
        read_values "$values"
    fi
    read -r -a KUBE <<<"$kubectl_command"
    [[ ${#KUBE[@]} -gt 0 ]] || bad_arguments "the kubectl command is empty"
    if [[ -n $verify && -n $uninstall ]]; then bad_arguments "--verify and --uninstall exclude each other"; fi
    if [[ -n $uninstall ]]; then
        [[ -z $image ]] || bad_arguments "--uninstall takes no image, got '$image'"
    else
        [[ -n $image ]] || bad_arguments "which image? Usage: install-dra-driver.sh [options] IMAGE"
        matches IMAGE "$image" '^[A-Za-z0-9][A-Za-z0-9._/:@-]*$' "expected something like registry.example/neuron-dra-driver:1.0.0"
    fi
}

# Options from a file: "OPTION: VALUE" lines, or for what can be given several times "OPTION:" and "- VALUE" lines below.
# This is YAML as simple as it gets, and what is more than that is refused.
read_values() {
    local line option='' text seen=' ' number=0
    [[ -f $1 && -r $1 ]] || bad_arguments "--values: cannot read the file '$1'"
    while IFS= read -r line || [[ -n $line ]]; do
        number=$((number + 1))
        place="$1:$number: "
        line=${line%$'\r'}
        if [[ $line =~ ^[[:space:]]*(#.*)?$ || $number$line == 1--- ]]; then
            continue
        elif [[ $line =~ ^([a-z][a-z-]*):([[:space:]]+(.*))?$ ]]; then
            option=--${BASH_REMATCH[1]} text=${BASH_REMATCH[3]-}
            [[ $seen != *" $option "* ]] || bad_arguments "'${option#--}' is there twice"
            seen+="$option "
            if [[ $text != '' && $text != \#* || " $LISTS " != *" $option "* ]]; then
                set_from_file "$option" "$text"
                option=''
            fi
        elif [[ $line =~ ^[[:space:]]*-[[:space:]]+(.*)$ && -n $option && " $LISTS " == *" $option "* ]]; then
            set_from_file "$option" "${BASH_REMATCH[1]}"
        else
            bad_arguments "expected 'OPTION: VALUE', or below one of ${LISTS//--/} '- VALUE'"
        fi
    done <"$1"
    place=''
}

# set_from_file OPTION TEXT: unless the command line has that option.
set_from_file() {
    local text=$2 quoted="^'(([^']|'')*)'[[:space:]]*(#.*)?\$" double='^"([^"\\]*)"[[:space:]]*(#.*)?$'
    if [[ $text =~ $quoted ]]; then
        text=${BASH_REMATCH[1]//$QUOTE$QUOTE/$QUOTE}
    elif [[ $text =~ $double ]]; then
        text=${BASH_REMATCH[1]}
    else
        text=${text%%[[:space:]]#*}
        text=${text%"${text##*[![:space:]]}"}
        if [[ -z $text || $text =~ ^[^A-Za-z0-9/._] || $text =~ :([[:space:]]|$) ]]; then
            bad_arguments "expected a plain or quoted value for ${1#--}, got '$2'"
        fi
    fi
    case $1 in
    --image) image=${image:-$text} ;;
    --placer | --extended-resources)
        [[ $text == true ]] || bad_arguments "expected '${1#--}: true'; to end it, leave the line out and pass --reset"
        if [[ $1 == --placer ]]; then placer=1; else extended=1; fi
        ;;
    --values | --kubectl) bad_arguments "${1#--} belongs to the command line" ;;
    *) if [[ $given != *" $1 "* ]]; then set_option "$1" "$text"; else (set_option "$1" "$text"); fi ;;
    esac
}

set_option() {
    case $1 in
    --emulate)
        matches "$1" "$2" '^[a-z0-9][a-z0-9.-]*$' "expected an instance type such as trn2.48xlarge"
        emulate=$2
        ;;
    --emulated-ultraservers)
        matches "$1" "$2" '^[1-9][0-9]{0,3}x[24]$' "expected something like 2x4: two servers of four nodes"
        ultraservers=$2
        ;;
    --devices)
        matches "$1" "$2" "^$CUT([,.]$CUT)*\$" "expected chip, core, group, group4 (or another size) and node, joined by commas"
        devices=$2
        ;;
    --node-selector)
        matches "$1" "$2" '^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9][A-Za-z0-9._-]*=[A-Za-z0-9._-]*$' "expected LABEL=VALUE"
        node_selector=$2
        ;;
    --kubelet-root)
        matches "$1" "$2" '^(/[A-Za-z0-9._-]+)+$' "expected an absolute path such as /var/lib/kubelet"
        kubelet_root=$2
        ;;
    --resource-api)
        matches "$1" "$2" '^v1(beta[12])?$' "expected v1, v1beta2 or v1beta1"
        resource_api=$2
        ;;
    --timeout)
        matches "$1" "$2" '^[1-9][0-9]{0,5}$' "expected a number of seconds"
        timeout=$2
        ;;
    --group-timeout)
        matches "$1" "$2" '^[1-9][0-9]{0,4}$' "expected a number of seconds"
        group_timeout=$2
        ;;
    --toleration)
        matches "$1" "$2" "^(\\*|$KEY(=[A-Za-z0-9._-]*:(NoSchedule|PreferNoSchedule|NoExecute)|:(NoSchedule|PreferNoSchedule|NoExecute))?)\$" \
            "expected KEY=VALUE:EFFECT, KEY:EFFECT, KEY or *, where EFFECT is NoSchedule, PreferNoSchedule or NoExecute"
        tolerations+=$2$'\n'
        ;;
    --image-pull-secret)
        matches "$1" "$2" "^$PART\$" "expected the name of a Secret"
        pull_secrets+=$2$'\n'
        ;;
    --env)
        matches "$1" "$2" '^[A-Z][A-Z0-9_]*=[[:print:]]*$' "expected NAME=VALUE with printable characters"
        if [[ ${2%%=*} != HEALTH_POLICY ]] && grep -qx " *- name: ${2%%=*}" "$MANIFESTS/daemonset.yaml"; then
            bad_arguments "$1 ${2%%=*} is set by the script itself; look for another option"
        fi
        env+=$2$'\n'
        ;;
    --resources)
        matches "$1" "$2" "^$RESOURCE(,$RESOURCE)*\$" "expected something like requests.cpu=50m,limits.memory=256Mi"
        if [[ -n $(tr , '\n' <<<"$2" | sed 's/=.*//' | sort | uniq -d) ]]; then bad_arguments "$1 '$2' has one name twice"; fi
        resources=$2
        ;;
    --values) values=$2 ;;
    --kubectl) kubectl_command=$2 ;;
    *) bad_arguments "there is no option $1 with a value" ;;
    esac
}

# Takes the defaults for what neither options nor the installation say.
complete() {
    if [[ -n $ultraservers && -z $emulate ]]; then bad_arguments "--emulated-ultraservers goes with --emulate trn2u.48xlarge"; fi
    if [[ -n $group_timeout && -z $placer ]]; then bad_arguments "--group-timeout goes with --placer"; fi
    kubelet_root=${kubelet_root:-/var/lib/kubelet}
    if [[ -n $placer ]]; then group_timeout=${group_timeout:-300}; fi
}

# Whether nodes may offer cores, whose preparation has to look at pods.
offers_cores() { [[ -n $extended || $devices =~ (^|[,.])core($|[,.]) ]]; }

# without NAME: a sed expression that drops the block between the marks of that name.
without() { printf '/# >>> %s$/,/# <<< %s$/d;' "$1" "$1"; }

render() {
    local drop no_extended='' no_pods=''
    if [[ -z $extended ]]; then no_extended=$(without extended-resources); fi
    if ! offers_cores; then no_pods=$(without pods); fi
    drop=$(without health-policy)
    if [[ -n $emulate ]]; then
        drop+=$(without instance-types)$(without hardware)
    else
        drop+=$(without emulation)
    fi
    if [[ -z $ultraservers ]]; then drop+=$(without emulated-ultraservers); fi
    if [[ -z $devices ]]; then drop+=$(without devices); fi
    if [[ -n $node_selector ]]; then drop+=$(without instance-types); else drop+=$(without node-selector); fi
    cat "$MANIFESTS/namespace.yaml"
    echo ---
    sed -e "$no_pods" -e "$MARKS" "$MANIFESTS/rbac.yaml"
    echo ---
    sed -e '/^#/d' -e "$no_extended" -e "$MARKS" -e "s|resource.k8s.io/v1$|resource.k8s.io/${resource_api:-v1}|" \
        "$MANIFESTS/deviceclass.yaml"
    if [[ -n $with_policy ]]; then
        echo ---
        cat "$MANIFESTS/admission-policy.yaml"
    fi
    echo ---
    sed -e '/^#/d' -e "$drop" -e "$MARKS" -e "s|NEURON_DRA_IMAGE|$image|" \
        -e "s|/var/lib/kubelet|$kubelet_root|" -e "s|EMULATED_INSTANCE_TYPE|$emulate|" \
        -e "s|ULTRASERVER_TOPOLOGY|$ultraservers|" -e "s|OFFERED_DEVICES|$devices|" \
        -e "s|NODE_SELECTOR_KEY|${node_selector%%=*}|" -e "s|NODE_SELECTOR_VALUE|${node_selector#*=}|" \
        "$MANIFESTS/daemonset.yaml" | fill
    if [[ -n $placer ]]; then render_placer; fi
}

# Adds to a manifest at its marks what the options say; resources take the place of those that follow.
fill() {
    added_options=$(options_yaml) added_pull_secrets=$(pull_secrets_yaml) added_tolerations=$(tolerations_yaml) \
    added_env=$(env_yaml) added_resources=$(resources_yaml) awk '
            /^ *# \+\+\+ / {
                added = ENVIRON["added_" $NF]
                if (added != "") print added
                drop = $NF == "resources" && added != ""
                next
            }
            drop && /^(        resources:$|          )/ {next}
            {drop = 0; print}'
}

# The options that are kept as they were given, a line each; of these an annotation of the DaemonSet is made.
kept_options() {
    local option lines line
    for option in --toleration --image-pull-secret --env --resources; do
        case $option in
        --toleration) lines=$tolerations ;;
        --image-pull-secret) lines=$pull_secrets ;;
        --env) lines=$env ;;
        --resources) lines=${resources:+$resources$'\n'} ;;
        esac
        while IFS= read -r line; do
            if [[ -n $line ]]; then printf '%s=%s\n' "$option" "$line"; fi
        done <<<"$lines"
    done
}

options_yaml() {
    local kept
    kept=$(kept_options)
    if [[ -n $kept ]]; then printf '  annotations:\n    %s: |\n      %s\n' "$OPTIONS" "${kept//$NEWLINE/$NEWLINE      }"; fi
}

pull_secrets_yaml() {
    local name
    if [[ -n $pull_secrets ]]; then echo '      imagePullSecrets:'; fi
    while read -r name; do
        if [[ -n $name ]]; then printf '      - name: "%s"\n' "$name"; fi
    done <<<"$pull_secrets"
}

tolerations_yaml() {
    local taint key value
    while read -r taint; do
        key=${taint%%[=:]*}
        case $taint in
        '') ;;
        \*) echo '      - operator: Exists' ;;
        *=*)
            value=${taint#*=}
            printf '      - key: "%s"\n        operator: Equal\n        value: "%s"\n' "$key" "${value%%:*}"
            ;;
        *) printf '      - key: "%s"\n        operator: Exists\n' "$key" ;;
        esac
        if [[ $taint == *:* ]]; then printf '        effect: %s\n' "${taint##*:}"; fi
    done <<<"$tolerations"
}

env_yaml() {
    local variable value
    while IFS= read -r variable; do
        value=${variable#*=}
        if [[ -n $variable ]]; then
            printf "        - name: %s\n          value: '%s'\n" "${variable%%=*}" "${value//$QUOTE/$QUOTE$QUOTE}"
        fi
    done <<<"$env"
}

resources_yaml() {
    local kind rows
    if [[ -n $resources ]]; then echo '        resources:'; fi
    for kind in requests limits; do
        rows=$(tr , '\n' <<<"$resources" | sed -n "s/^$kind\.\(.*\)=\(.*\)/            \1: \"\2\"/p")
        if [[ -n $rows ]]; then printf '          %s:\n%s\n' "$kind" "$rows"; fi
    done
}

render_placer() {
    local drop=''
    if [[ -z $with_policy ]]; then drop=$(without policy); fi
    echo ---
    sed -e "$drop" -e '/^#/d' -e "s|NEURON_DRA_IMAGE|$image|" -e "s|GROUP_TIMEOUT_SECONDS|$group_timeout|" \
        "$MANIFESTS/placer.yaml" | fill
}

show_context() {
    local context server
    command -v "${KUBE[0]}" >/dev/null || die "there is no '${KUBE[0]}' here; install kubectl, or name it with --kubectl"
    context=$(kube config current-context 2>/dev/null) || context='(none: kubectl decides)'
    server=$(kube config view --minify -o 'jsonpath={.clusters[0].cluster.server}' 2>/dev/null) || server='(unknown)'
    note "context: $context"
    note "server:  $server"
}

confirm() {
    local answer
    if [[ -n $yes || ! -t 0 ]]; then return; fi
    read -r -p "$1 [y/N] " answer
    case $answer in
    y | Y | yes | Yes) ;;
    *) die "not confirmed; nothing was changed" ;;
    esac
}

serves_policies() {
    local resources
    resources=$(kube get --raw /apis/admissionregistration.k8s.io/v1 2>/dev/null) || return 1
    [[ $resources == *'"validatingadmissionpolicies"'* ]]
}

# Checks what the cluster supports, and warns about problems before anything is changed.
preflight() {
    local group
    group=$(kube get --raw /apis) || die "the API server does not respond (see above); nothing was changed"
    if [[ $group != *'"resource.k8s.io"'* ]]; then
        die "this cluster does not serve resource.k8s.io: Dynamic Resource Allocation needs Kubernetes 1.34," \
            "or 1.33 with the feature gate DynamicResourceAllocation and --runtime-config=resource.k8s.io/v1beta1=true"
    fi
    if [[ -z $resource_api ]]; then
        for resource_api in v1 v1beta2 v1beta1 none; do
            if [[ $group == *"\"resource.k8s.io/$resource_api\""* ]]; then break; fi
        done
        if [[ $resource_api == none ]]; then
            die "this cluster serves none of resource.k8s.io/v1, v1beta2, v1beta1; update it to Kubernetes 1.34 or later"
        fi
    fi
    if [[ $resource_api != v1 ]]; then
        warn "the cluster serves resource.k8s.io/$resource_api only; Kubernetes 1.34 is the first release with v1"
    fi
    if ! serves_policies; then
        with_policy=''
        warn "the API server has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later do), so a compromised driver pod" \
            "could write the ResourceSlices and the Nodes of others"
    fi
    check_device_plugin
}

node_columns='NAME:.metadata.name,KUBELET:.status.nodeInfo.kubeletVersion'
node_columns+=',TYPE:.metadata.labels.node\.kubernetes\.io/instance-type,NEURON:.status.allocatable.aws\.amazon\.com/neuron'

# Looks at the nodes that the DaemonSet chooses.
check_nodes() {
    local name version type neuron nodes
    nodes=$(kube get nodes --no-headers -o "custom-columns=$node_columns" -l "$(chosen_nodes)") ||
        unknown "which nodes the driver would run on"
    while read -r name version type neuron; do
        if [[ $version =~ ^v1\.34\.[01]([^0-9]|$) ]]; then
            warn "node $name has kubelet $version, which stops calling DRA drivers after 30 minutes without a call" \
                "(kubernetes/kubernetes#133920): the driver will run there, and offer no device that no claim holds," \
                "until kubelet is updated to 1.34.2 or later"
        elif [[ $version =~ ^v1\.([0-9]+) && ${BASH_REMATCH[1]} -lt 33 ]]; then
            warn "node $name has kubelet $version: 1.33 is the oldest version that supports driver updates" \
                "without interruption"
        fi
        if [[ ${neuron:-<none>} != '<none>' && $neuron != 0 ]]; then
            warn "node $name ($type) offers $neuron aws.amazon.com/neuron through a device plugin as well; neither" \
                "knows what the other allocates, so a device could be given to two pods: keep one of them off this node"
        fi
    done <<<"$nodes"
}

# kubelet goes on without a Secret that is missing, and only then the registry refuses.
check_pull_secrets() {
    local name found
    while read -r name; do
        if [[ -n $name ]] && found=$(kube -n "$NAMESPACE" get secret "$name" --ignore-not-found -o name) && [[ -z $found ]]; then
            warn "there is no Secret $name in the namespace $NAMESPACE; create it there:" \
                "${KUBE[*]} -n $NAMESPACE create secret docker-registry $name --docker-server=... --docker-username=..."
        fi
    done <<<"$pull_secrets"
}

check_device_plugin() {
    local found
    found=$(kube get daemonsets --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
        awk '$2 ~ /neuron-device-plugin/ {printf "%s%s/%s", separator, $1, $2; separator = ", "}')
    if [[ -n $found ]]; then
        warn "the Neuron device plugin is installed ($found); it must not run on a node where this driver runs"
    fi
}

daemonset_columns='{.metadata.name}|{.spec.template.spec.containers[?(@.name=="neuron-dra-driver")].image}'
for variable in NEURON_DRA_DRIVER_EMULATION_MODE EMULATED_ULTRASERVERS KUBELET_PLUGINS_DIRECTORY_PATH; do
    daemonset_columns+="|{.spec.template.spec.containers[*].env[?(@.name==\"$variable\")].value}"
done
terms='.spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms'
daemonset_columns+="|{${terms}[*].matchExpressions[?(@.key==\"node.kubernetes.io/instance-type\")].key}"
daemonset_columns+='|{.spec.template.spec.nodeSelector}'
daemonset_columns+='|{.spec.template.spec.containers[*].env[?(@.name=="DEVICES")].value}'
placer_columns='{.metadata.name}|{.spec.template.spec.containers[*].env[?(@.name=="GROUP_TIMEOUT")].value}'
class_columns='{range .items[*]}{.metadata.name}|{.spec.extendedResourceName}{"\n"}{end}'

# What is installed now: the same settings as of the options, empty where there are none.
read_installed() {
    local driver renewed types labels
    driver=$(kube -n "$NAMESPACE" get daemonset "$DAEMONSET" --ignore-not-found -o "jsonpath=$daemonset_columns") ||
        unknown "what is installed"
    renewed=$(kube -n "$NAMESPACE" get deployment "$PLACER" --ignore-not-found -o "jsonpath=$placer_columns") ||
        unknown "what is installed"
    was_options=$(kube -n "$NAMESPACE" get daemonset "$DAEMONSET" --ignore-not-found \
        -o "jsonpath={.metadata.annotations.${OPTIONS//./\\.}}") || unknown "what is installed"
    classes=$(kube get deviceclasses -o "jsonpath=$class_columns") || unknown "which DeviceClasses there are"
    IFS='|' read -r was_there was_image was_emulate was_ultraservers was_root types labels was_devices <<<"$driver"
    IFS='|' read -r was_placer was_group_timeout <<<"$renewed"
    was_root=${was_root%/plugins} was_selector='' was_extended=''
    if [[ $classes == *"chip.$DRIVER|a"* ]]; then was_extended=1; fi
    # Beside a list of instance types, labels are somebody else's addition, which `apply` leaves alone.
    if [[ -z $types && $labels =~ ^\{\"([^\"]+)\":\"([^\"]*)\"\}$ ]]; then
        was_selector="${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
    elif [[ -z $types ]]; then
        was_selector=$labels
    fi
}

# Keeps of the installed settings what no option changes, and shows both.
keep_settings() {
    read_installed
    if [[ -n $was_placer ]]; then placer=1; fi
    if [[ -z $reset ]]; then
        # Another type need not have UltraServers.
        if [[ ${emulate:-$was_emulate} == "$was_emulate" ]]; then
            keep --emulated-ultraservers "$ultraservers" "$was_ultraservers"
        fi
        keep --emulate "$emulate" "$was_emulate"
        keep --devices "$devices" "$was_devices"
        if [[ -n $was_there && -n $was_extended ]]; then extended=1; fi
        keep --node-selector "$node_selector" "$was_selector"
        keep --kubelet-root "$kubelet_root" "$was_root"
        keep --group-timeout "$group_timeout" "$was_group_timeout"
        keep_options
    fi
    complete
    if [[ -n $extended ]]; then check_extended; fi
    if [[ -n $was_there ]]; then
        note "installed: $(as_options "$was_image" "$was_extended" "$was_emulate" "$was_ultraservers" "$was_devices" \
            "$was_selector" "$was_root" "$was_group_timeout" "$was_options")"
        note "will be:   $(as_options "$image" "$extended" "$emulate" "$ultraservers" "$devices" "$node_selector" \
            "$kubelet_root" "$group_timeout" "$(kept_options)")"
    fi
}

# Takes --extended-resources back where the cluster has none, and warns where pods would still wait.
check_extended() {
    local version name resource ours
    version=$(kube get --raw /version) || unknown "the version of the API server"
    if [[ ! $version =~ \"minor\":\ *\"([0-9]+) || ${BASH_REMATCH[1]} -lt 36 ]]; then
        extended=''
        warn "Kubernetes 1.36 is the first release in which DRA drivers serve extended resources, so --extended-resources is" \
            "left out: pods with such limits wait. Run this again after an update of the cluster"
        return
    fi
    ours=$(sed -n 's/^  name: //p' "$MANIFESTS/deviceclass.yaml")
    while IFS='|' read -r name resource; do
        if [[ -n $resource && $'\n'$ours$'\n' != *$'\n'"$name"$'\n'* ]] &&
            grep -qxF "  extendedResourceName: $resource" "$MANIFESTS/deviceclass.yaml"; then
            warn "DeviceClass $name offers $resource as well, and a scheduler takes one of the two classes; delete it:" \
                "${KUBE[*]} delete deviceclass $name"
        fi
    done <<<"$classes"
    if [[ ! $devices =~ (^|[,.])core($|[,.]) ]]; then
        note "aws.amazon.com/neuroncore is served only by nodes that offer cores: see --devices, or label these nodes"
    fi
}

# A feature gate may be off: the API server then drops the field.
check_extended_stored() {
    local stored
    stored=$(kube get deviceclass "chip.$DRIVER" -o 'jsonpath={.spec.extendedResourceName}') || return 0
    if [[ -z $stored ]]; then
        warn "the API server has not kept the extended resources of the DeviceClasses, so pods with such limits wait: its" \
            "feature gate DRAExtendedResource is off"
    fi
}

# keep OPTION TOLD INSTALLED
keep() {
    if [[ -n $2 || -z $3 ]]; then return; fi
    (set_option "$1" "$3") || die "so the installed $1 cannot be kept; pass that option, or --reset. Nothing was changed"
    set_option "$1" "$3"
}

# Keeps what the annotation of the DaemonSet tells of options that neither command line nor file have.
keep_options() {
    local line told=''
    told=" $(kept_options | sed 's/=.*//' | paste -sd ' ' -) "
    while IFS= read -r line; do
        case $line in
        '') ;;
        --toleration=* | --image-pull-secret=* | --env=* | --resources=*)
            if [[ $told != *" ${line%%=*} "* ]]; then keep "${line%%=*}" '' "${line#*=}"; fi
            ;;
        *) die "the annotation $OPTIONS of the DaemonSet has a line that is none: '$line'; pass --reset. Nothing was changed" ;;
        esac
    done <<<"$was_options"
}

# as_options IMAGE EXTENDED VALUE... LINES: the settings as one would give them.
as_options() {
    local text=$1 option
    shift
    if [[ -n $1 ]]; then text+=' --extended-resources'; fi
    for option in --emulate --emulated-ultraservers --devices --node-selector --kubelet-root '--placer --group-timeout'; do
        shift
        if [[ -n $1 ]]; then text+=" $option $1"; fi
    done
    if [[ -n $2 ]]; then text+=" ${2//$NEWLINE/ }"; fi
    printf '%s' "$text"
}

# A label selector for the nodes that the DaemonSet chooses.
chosen_nodes() {
    local types
    if [[ -n $node_selector ]]; then
        printf '%s' "$node_selector"
    elif [[ -z $emulate ]]; then
        types=$(sed -n '/# >>> instance-types$/,/# <<< instance-types$/p' "$MANIFESTS/daemonset.yaml" |
            grep -oE '[a-z0-9.-]+\.[0-9]*xlarge' | paste -sd, -)
        printf 'node.kubernetes.io/instance-type in (%s)' "$types"
    fi
}

# Refuses to end the driver on nodes whose devices pods use.
check_nodes_left() {
    local runs stays left
    runs=$(kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}') ||
        unknown "where the driver runs"
    stays=$(kube get nodes -l "$(chosen_nodes)" -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}') ||
        unknown "where the driver would run"
    # Below another root is another record of prepared claims, and perhaps no kubelet.
    if [[ $kubelet_root != "${was_root:-$kubelet_root}" ]]; then stays=''; fi
    left=$(comm -23 <(awk 'NF {print $1}' <<<"$runs" | sort -u) <(sort -u <<<"$stays") | paste -sd ' ' -)
    if [[ -n $left ]]; then
        warn "with these settings the driver stops on $left"
        check_claims "$left"
    fi
}

apply() {
    render | kube apply -f - || die "not everything could be applied (see above); fix the cause and run this again"
    if [[ -n $restart ]]; then kube -n "$NAMESPACE" rollout restart "daemonset/$DAEMONSET"; fi
    if [[ -n $restart && -n $placer ]]; then kube -n "$NAMESPACE" rollout restart "deployment/$PLACER"; fi
}

rollout_columns='{.metadata.generation}|{.status.observedGeneration}|{.status.desiredNumberScheduled}'
rollout_columns+='|{.status.updatedNumberScheduled}|{.status.numberAvailable}{"\n"}'
waiting_columns='{range .items[*]}{.spec.nodeName}{" "}{.status.containerStatuses[*].state.waiting.reason}{"\n"}{end}'

# Waits until every node that should run the driver runs this version of it, ready. Sets `desired`.
wait_ready() {
    local deadline=$((SECONDS + timeout)) generation observed updated available line last='' reasons
    note "waiting up to $timeout s for the driver to register with kubelet and to publish its devices"
    while true; do
        IFS='|' read -r generation observed desired updated available < <(
            kube -n "$NAMESPACE" get daemonset "$DAEMONSET" -o "jsonpath=$rollout_columns"
        ) || generation=''
        if [[ -n $generation && ${observed:-0} -ge $generation ]]; then
            if [[ $desired == 0 ]]; then return 0; fi
            reasons=$(kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" -o "jsonpath=$waiting_columns" |
                awk 'NF > 1 {printf "; %s: %s", $1, $2}')
            line="  ready on ${available:-0} of $desired nodes, updated ${updated:-0}$reasons"
            if [[ $line != "$last" ]]; then note "$line"; fi
            last=$line
            if [[ ${updated:-0} -ge $desired && ${available:-0} -ge $desired ]]; then return 0; fi
        fi
        if [[ $SECONDS -ge $deadline ]]; then return 1; fi
        sleep 1
    done
}

wait_placer() {
    kube -n "$NAMESPACE" rollout status "deployment/$PLACER" --timeout="${timeout}s" >&2 ||
        die "the placer is not ready (see above), and pods with the gate neuron.aws.com/ultraserver wait until it is; its" \
            "log says more: ${KUBE[*]} -n $NAMESPACE logs -l app=$PLACER --prefix"
}

explain_failure() {
    local pod ready
    note "error: the driver is not ready everywhere after $timeout s. Its pods:"
    kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" -o wide >&2 || true
    while read -r pod ready; do
        if [[ $ready == true ]]; then continue; fi
        lines "" "== last events and log lines of $pod"
        kube -n "$NAMESPACE" get events --field-selector "involvedObject.name=$pod" --no-headers \
            -o custom-columns=REASON:.reason,MESSAGE:.message 2>&1 | tail -n 5 >&2 || true
        kube -n "$NAMESPACE" logs "$pod" --tail=15 >&2 || true
    done < <(kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" --no-headers \
        -o 'custom-columns=NAME:.metadata.name,READY:.status.containerStatuses[0].ready')
    lines "" "What to do:" \
        "  ErrImagePull: the nodes cannot pull $image; see --image-pull-secret for a registry that asks who you are." \
        "  hostPath type check failed, plugins_registry: kubelet's root directory is not $kubelet_root; see --kubelet-root." \
        "  Otherwise, see the log, and docs/troubleshooting.md." \
        "What was applied stays. Fix the cause and run this again, or remove the driver with --uninstall."
    exit 1
}

# v1beta1 has the attributes below `basic`.
slice_columns='{range .items[*]}{.spec.nodeName}|{.spec.devices[0].attributes.instanceType.string}'
slice_columns+='{.spec.devices[0].basic.attributes.instanceType.string}|{.spec.devices[*].name}{"\n"}{end}'

show_published() {
    local published table example=examples/specs command=${KUBE[*]}
    if [[ $desired == 0 ]]; then
        lines "" "Installed, but no node of the cluster matches, so the driver is not running yet. It starts automatically on" \
            "nodes with a known instance type; use --node-selector or --emulate to select others. Your nodes:"
        kube get nodes -L node.kubernetes.io/instance-type >&2
        return
    fi
    published=$(kube get resourceslices --field-selector "spec.driver=$DRIVER" -o "jsonpath=$slice_columns")
    # Slices of counters have no device.
    table=$(awk -F'|' '$1 != "" {if ($2 != "") type[$1] = $2; slices[$1]++; devices[$1] += split($3, names, " ")}
             END {
                 for (node in slices)
                     printf "  %-48s %-16s %3d devices in %d slice(s)\n", node, type[node], devices[node], slices[node]
             }' <<<"$published" | sort)
    lines "" "Published:" "${table:-  nothing}"
    # A driver that finds no device publishes an empty slice.
    if [[ -z $table || $table == *' 0 devices in '* ]]; then
        warn "not every node offers devices. The driver's log says what it found there:" \
            "$command -n $NAMESPACE logs -l app=$DAEMONSET --prefix"
    fi
    if [[ $resource_api != v1 ]]; then example+=/v1beta1; fi
    lines "" "Next:" \
        "  $command get resourceslices --field-selector spec.driver=$DRIVER"
    if [[ $published == *neuron-device-* ]]; then
        lines "  $command apply -f $example/1x4-connected-devices.yaml   # four connected devices of a trn2.48xlarge" \
            "  $command logs pod0                                      # what the pod got"
    elif [[ $published == *neuron-node* ]]; then
        example+=/2-node-inference-us.yaml
        if [[ -n $placer ]]; then
            lines "  sed 's/# schedulingGates/schedulingGates/' $example | $command apply -f -"
        else
            lines "  $command apply -f $example"
        fi
        lines "  $command logs vllm-2-node-0     # what the first of two whole nodes got; requires LeaderWorkerSet"
    fi
}

claim_columns='{range .items[*]}{.metadata.namespace}/{.metadata.name}|{.status.allocation.devices.results[*].driver}'
claim_columns+='|{.status.allocation.devices.results[*].pool}|{.status.reservedFor[*].name}{"\n"}{end}'

# claims_in_use NODES: claims that hold our devices (of these nodes, where any are named) and that pods are entitled to,
# as lines "  namespace/name, used by ...". The pool of a node's devices is named like the node.
claims_in_use() {
    kube get resourceclaims --all-namespaces -o "jsonpath=$claim_columns" |
        awk -F'|' -v driver="$DRIVER" -v nodes="$1" '
            $4 != "" {
                count = split($2, drivers, " ")
                split($3, pools, " ")
                for (i = 1; i <= count; i++)
                    if (drivers[i] == driver && (nodes == "" || index(" " nodes " ", " " pools[i] " "))) {
                        print "  " $1 ", used by " $4
                        break
                    }
            }'
}

former_columns='{range .items[*]}{.metadata.namespace}/{.metadata.name}'
former_columns+="|{.status.allocation.devices.results[?(@.driver==\"$DRIVER\")].device}"
former_columns+='|{.status.reservedFor[*].name}{"\n"}{end}'

# Refuses while pods use devices under the names that beta releases of AWS's driver gave: for the scheduler, the same
# chips under the names of this driver are free.
check_former_names() {
    local claims
    claims=$(kube get resourceclaims --all-namespaces -o "jsonpath=$former_columns") || unknown "whether devices are in use"
    claims=$(awk -F'|' '$2 ~ /(^| )neurondevice[0-9]/ && $3 != "" {print "  " $1 ", used by " $3}' <<<"$claims")
    if [[ -z $claims ]]; then return; fi
    lines "These claims hold devices under names of a beta release of AWS's DRA driver (neurondevice0 instead of" \
        "neuron-device-0), so the scheduler would give the same chips to other pods as well:" "$claims"
    if [[ -z $force ]]; then
        die "delete these pods first (see docs/install.md, Replacing AWS's DRA driver), or use --force. Nothing was changed"
    fi
    warn "installing anyway, because of --force: chips can be given to two pods"
}

# check_claims NODES: refuses while pods use devices (of these nodes, where any are named).
check_claims() {
    local claims
    claims=$(claims_in_use "$1") || unknown "whether devices are in use"
    if [[ -z $claims ]]; then return; fi
    lines "These claims are in use:" "$claims"
    if [[ -z $force ]]; then
        die "without the driver their pods cannot end; delete the pods first, or use --force. Nothing was changed"
    fi
    warn "their pods keep running, but will stay Terminating until the driver is installed again"
}

remove() {
    if [[ -n $dry_run ]]; then
        printf '%s delete --ignore-not-found %s\n' "${KUBE[*]}" "$*"
    else
        kube delete --ignore-not-found "$@"
    fi
}

uninstall() {
    if [[ -z $dry_run ]]; then
        show_context
        read_installed
        kubelet_root=${kubelet_root:-$was_root}
        confirm "Remove the Neuron DRA driver from this cluster?"
        check_claims ''
    fi
    complete
    # The pods first and wholly, else they would publish their slices again.
    remove -n "$NAMESPACE" daemonset "$DAEMONSET" --cascade=foreground --timeout="${timeout}s" ||
        die "the driver's pods have not ended (see above), so the rest was not removed; run this again when they have"
    remove -n "$NAMESPACE" deployment,poddisruptionbudget "$PLACER"
    remove resourceslices --field-selector "spec.driver=$DRIVER"
    if [[ -n $dry_run ]] || serves_policies; then
        remove validatingadmissionpolicybinding,validatingadmissionpolicy "${POLICIES[@]}" "$PLACER" "$PLACER-annotations"
    fi
    # shellcheck disable=SC2046 # one word a class
    remove deviceclass $(sed -n 's/^  name: //p' "$MANIFESTS/deviceclass.yaml")
    remove clusterrolebinding neuron-dra-driver-binding "$PLACER"
    remove clusterrole neuron-dra-driver-clusterrole "$PLACER"
    remove -n default rolebinding,role neuron-dra-driver-events
    remove namespace "$NAMESPACE"
    lines "" "Left on the nodes: the record of prepared claims in $kubelet_root/plugins/$DRIVER. A later installation" \
        "continues with it. If you do not plan to reinstall the driver, and no pod uses its devices, you may delete it." \
        "Nodes keep their labels and conditions. To remove them, run" \
        "  ${KUBE[*]} label nodes --all neuron.amazonaws.com/{present,ultraserver-{mode,server-id-{2,4},node-id-{2,4}}}-" \
        "  ${KUBE[*]} patch node NAME --subresource status" \
        "    -p '{\"status\": {\"conditions\": [{\"type\": \"NeuronHealth\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronKubeletUnsupported\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronDevicesHeldBack\", \"\$patch\": \"delete\"}]}}'"
}

# job_of TYPE: the name of the Job that checks nodes of this type.
job_of() { printf 'neuron-verify-%s' "$(tr -c 'a-z0-9\n' - <<<"$1" | sed 's/^-*//;s/-*$//')"; }

# render_verification NODE TYPE RUNTIME: the Job that checks a node's host.
render_verification() {
    local drop
    if [[ -n $emulate ]]; then drop=$(without hardware); else drop=$(without emulation); fi
    sed -e '/^#/d' -e "$drop" -e "$MARKS" -e "s|NEURON_DRA_IMAGE|$image|" -e "s|: /var/lib/kubelet|: $kubelet_root|" \
        -e "s|VERIFIED_NODE|$1|" -e "s|neuron-verify-VERIFIED_TYPE|$(job_of "$2")|" -e "s|VERIFIED_RUNTIME|$3|" \
        -e "s|EMULATED_INSTANCE_TYPE|$emulate|" "$MANIFESTS/verify.yaml" | fill
}

# verify_node NODE TYPE RUNTIME: runs that Job and prints what it says; fails if a line differs or there is no result.
verify_node() {
    local job status='' waited=0 report="verify-$2.json"
    job=$(job_of "$2")
    lines "" "$2 (node $1):"
    kube -n "$NAMESPACE" delete job "$job" --ignore-not-found --wait >/dev/null </dev/null || return 1
    render_verification "$@" | kube apply -f - >/dev/null || return 1
    while [[ ! $status =~ (Complete|Failed)=True ]]; do
        if [[ $waited -ge $timeout ]]; then
            warn "no result after $timeout seconds; see: ${KUBE[*]} -n $NAMESPACE describe pods -l job-name=$job"
            return 1
        fi
        sleep 1
        waited=$((waited + 1))
        status=$(kube -n "$NAMESPACE" get job "$job" \
            -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {end}' </dev/null) || return 1
    done
    kube -n "$NAMESPACE" logs "job/$job" -c lines --tail=-1 </dev/null || status=lost
    kube -n "$NAMESPACE" logs "job/$job" -c report --tail=-1 </dev/null >"$report" || status=lost
    kube -n "$NAMESPACE" delete job "$job" --wait=false >/dev/null </dev/null || status=lost
    note "report: $report"
    [[ $status == *Complete=True* ]]
}

verify_columns='NAME:.metadata.name,TYPE:.metadata.labels.node\.kubernetes\.io/instance-type'
verify_columns+=',RUNTIME:.status.nodeInfo.containerRuntimeVersion'

# Checks one node of each instance type that has Neuron chips; with --node-selector or --emulate, of each type at all.
verify() {
    local name type runtime found made='' seen=' ' failed='' selector=()
    complete
    if [[ -n $dry_run ]]; then
        render_verification NODE_NAME instance-type RUNTIME
        return
    fi
    show_context
    confirm "Run a Job on one node of each instance type of this cluster?"
    if [[ -n $node_selector ]]; then selector=(-l "$node_selector"); fi
    found=$(kube get nodes --no-headers ${selector[@]+"${selector[@]}"} -o "custom-columns=$verify_columns") ||
        unknown "which nodes there are"
    if ! kube get namespace "$NAMESPACE" >/dev/null 2>&1; then made=1; fi
    kube apply -f "$MANIFESTS/namespace.yaml" >/dev/null
    while read -r name type runtime; do
        type=${type//[<>]/}
        if [[ -z $name || $seen == *" $type "* ]]; then continue; fi
        if [[ -z $node_selector && -z $emulate ]] && ! grep -q "[ ]${type//./\\.}," "$MANIFESTS/daemonset.yaml"; then continue; fi
        seen+="$type "
        verify_node "$name" "$type" "$runtime" || failed=1
    done <<<"$found"
    if [[ -n $made ]]; then kube delete namespace "$NAMESPACE" --wait=false >/dev/null; fi
    if [[ $seen == ' ' ]]; then
        die "no node has the label of an instance type with Neuron chips; name the nodes with --node-selector"
    fi
    if [[ -n $failed ]]; then die "some lines differ, or have no result; please send the reports in (docs/hardware.md)"; fi
}

main() {
    parse "$@"
    if [[ -n $uninstall ]]; then
        uninstall
    elif [[ -n $verify ]]; then
        verify
    elif [[ -n $dry_run ]]; then
        complete
        render
    else
        show_context
        preflight
        keep_settings
        check_nodes
        check_former_names
        if [[ -n $pull_secrets ]]; then check_pull_secrets; fi
        if [[ -n $was_there ]]; then check_nodes_left; fi
        confirm "Install the Neuron DRA driver into this cluster?"
        apply
        if [[ -n $extended ]]; then check_extended_stored; fi
        if ! wait_ready; then explain_failure; fi
        if [[ -n $placer ]]; then wait_placer; fi
        show_published
    fi
}

main "$@"
