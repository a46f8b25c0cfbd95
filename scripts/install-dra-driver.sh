#!/usr/bin/env bash
# Installs the Neuron DRA driver into the cluster of the current kubectl context.
#
# Usage: install-dra-driver.sh [options] IMAGE
#        install-dra-driver.sh --uninstall [options]
#        install-dra-driver.sh --verify [options] IMAGE
#
#   IMAGE                the driver's container image, preferably with a digest or a tag that is never reused (the script
#                        of a release knows its image, and needs none)
#   --emulate TYPE       emulate instances of TYPE, such as trn2.48xlarge; the driver then runs on every node
#   --emulated-ultraservers SxN
#                        with --emulate: group the nodes into S UltraServers of N nodes, such as 2x4, by the number at the
#                        end of a node's name: node-1 to node-4 form the first server
#   --partitions WORDS   what each node offers, one or more of chip, core, group, group4 (or another size), node; such
#                        as chip.core (default: chips, or whole UltraServer nodes; a Node's label
#                        neuron.aws.com/partitions overrules it for that node)
#   --extended-resources serve limits such as aws.amazon.com/neuron, neuroncore and neuron-4 of unchanged pods from the
#                        driver's devices; needs Kubernetes 1.36
#   --node-selector K=V  run on the nodes with this label instead of on the known instance types
#   --kubelet-root DIR   kubelet's root directory on the nodes (default /var/lib/kubelet)
#   --placer             also run the placer, which keeps groups of pods on UltraServers from blocking each other
#   --group-timeout S    with --placer: seconds after which a group that lacks nodes is recreated elsewhere
#                        (default 300)
#   --ultraserver-operator
#                        with the placer, which it implies: also install AWS's kinds NeuronUltraServer and
#                        NeuronUltraServerWorkload, and serve them: UltraServers as a whole for workloads
#   --max-servers-per-namespace N
#                        with --ultraserver-operator: UltraServers, whole or in part, that the workloads of one namespace
#                        may have (default any number)
#   --claim-controller NAME
#                        as whom Kubernetes makes claims from templates: system:kube-controller-manager where
#                        kube-controller-manager runs without --use-service-account-credentials (default
#                        system:serviceaccount:kube-system:resource-claim-controller)
#   --toleration T       run on nodes with this taint, too: KEY=VALUE:EFFECT, KEY:EFFECT, KEY, or * for all (driver and
#                        placer)
#   --image-pull-secret NAME
#                        a Secret of the namespace neuron-dra-driver with the registry's credentials (driver and placer)
#   --env NAME=VALUE     a setting of the driver that has no option here, such as CONTIGUITY_POLICY=refuse
#   --resources LIST     requests and limits of the driver instead of the default ones, such as
#                        requests.cpu=50m,requests.memory=64Mi,limits.memory=256Mi
#   --parameters-policy off
#                        do not refuse wrong parameters (NeuronConfig, UltraServerConfig) when they are applied, but only
#                        when a pod starts (default on)
#   --values FILE        take options from a file of lines such as "partitions: chip.core"; those of the command line
#                        prevail
#   --restart            replace the driver's pods even if nothing changed (a new image was loaded under the same name)
#   --reset              for settings that you do not pass, use the defaults instead of the installed values
#   --verify             install nothing: check by a Job on one node of each instance type (where it gives no result, on
#                        up to three) that hosts are as the driver assumes (dra-driver verify-host), and write
#                        verify-TYPE.json for each into this directory
#   --uninstall          remove the driver; refuses while pods use its devices, unless you pass --force
#   --force              uninstall, or leave nodes, even if pods use devices: they stay Terminating until the driver is
#                        back; or install beside claims with the device names of the beta of AWS's driver; or into a
#                        namespace that somebody else has made; or change or remove what helm has installed
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
# Needs kubectl 1.27 or later and bash; the bash 3.2 of macOS will do.
set -euo pipefail

# The way of the data: the command line and --values FILE say options, a variable each (parse); an update takes the
# others from what is installed (keep_settings); of both, kustomize makes the objects from what the chart gives in
# deploy/ (render), and kubectl applies them. All checks are between the second step and the third.

# What a release writes here, and in place of NEURON_DRA_IMAGE into deploy/.
DEFAULT_IMAGE=''
NAMESPACE='neuron-dra-driver'
DAEMONSET='neuron-dra-driver-kubelet-plugin'
DRIVER='neuron.aws.com'
OPTIONS='neuron.aws.com/install-options'
CLAIM_STATUS='neuron-dra-driver-claim-status'
PARAMETERS='neuron-dra-driver-parameters'
POLICIES=(neuron-dra-driver-own-{slices,pools,node,events,claims} "$PARAMETERS" classes.neuron.aws.com)
PLACER='neuron-dra-driver-placer'
DEFINITIONS=(neuronultraserver{s,workloads}.neuron.aws.com)
PEOPLE=(neuron-ultraservers-{viewer,editor})
CLAIM_CONTROLLER='system:serviceaccount:kube-system:resource-claim-controller'
CONTROLLER_MANAGER='system:kube-controller-manager'
FLAGS=' --placer --ultraserver-operator --extended-resources --restart --reset --uninstall --verify --force --dry-run --yes '
LISTS='--toleration --image-pull-secret --env'
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DEPLOY=$HERE/../deploy
SETTINGS=kustomize/driver-settings

PARTITION='(chip|core|node|group([2-9]|[1-9][0-9]{1,2})?)'
PART='[a-z0-9]([a-z0-9.-]*[a-z0-9])?'
WORD='[A-Za-z0-9][A-Za-z0-9._-]*'
KEY="($PART/)?$WORD"
RUNTIME='[a-z][a-z0-9-]{0,30}://[A-Za-z0-9][A-Za-z0-9._+~-]{0,62}'
EFFECT='(NoSchedule|PreferNoSchedule|NoExecute)'
RESOURCE='(requests|limits)\.(cpu|memory|ephemeral-storage)=[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?'

# In variables, because inside of ${...//...} bash 3.2 does not always know them.
NEWLINE=$'\n'
QUOTE="'"

# The options, by their names. Empty: not given. Of what can be given several times: a line each.
emulate='' emulated_ultraservers='' partitions='' extended_resources='' node_selector='' kubelet_root='' placer=''
ultraserver_operator='' max_servers_per_namespace='' claim_controller='' group_timeout='' parameters_policy=''
toleration='' image_pull_secret='' env='' resources=''
resource_api='' values='' timeout=300 restart='' reset='' uninstall='' verify='' force='' dry_run='' yes='' kubectl=${KUBECTL:-kubectl}
# And what else is found out on the way.
image='' place='' given=' ' space='' classes='' foreign='' was_operator='' with_policy=1 scratch='' components='' patches=''

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; }
# Names, messages and versions in what is printed may be of nodes and tenants: nothing of it drives a terminal, or turns
# the direction of a line, which some locales let pass as printable.
lines() {
    local line LC_ALL=C
    for line in "$@"; do printf '%s\n' "${line//[^[:print:]$NEWLINE]/?}" >&2; done
}
note() { lines "$*"; }
warn() { lines "warning: $*"; }
die() {
    lines "error: $*"
    exit 1
}
# The same for what kubectl prints of them.
printable() { LC_ALL=C tr -c '\n\t -~' '?'; }
unknown() { die "cannot find out $1 (see above). Nothing was changed"; }
bad_arguments() {
    lines "error: $place$*" "Try --help."
    exit 2
}
kube() { "${KUBE[@]}" "$@"; }
# kube_within SECONDS ARGUMENTS: gives up after that time. macOS has no `timeout`, so kubectl has a limit of its own; a
# wrapper or a plugin for credentials may take longer than that all the same. `timeout` runs programs, and no functions.
kube_within() {
    local seconds=$1 limit=()
    shift
    if [[ -n $(type -P timeout) && -n $(type -P "${KUBE[0]}") ]]; then limit=(timeout "$((seconds + 3))"); fi
    ${limit[@]+"${limit[@]}"} "${KUBE[@]}" "$@" --request-timeout="${seconds}s" </dev/null
}
# pod_log BYTES ARGUMENTS: the first bytes of a log. It is a kubelet that gives it: anything, and perhaps without end.
pod_log() {
    local bytes=$1
    shift
    kube_within "$((timeout < 30 ? timeout : 30))" -n "$NAMESPACE" logs "$@" --limit-bytes="$bytes" | head -c "$bytes"
}

# matches NAME VALUE PATTERN HINT: the values go into YAML, so nothing but the expected characters may pass.
matches() { [[ $2 =~ $3 ]] || bad_arguments "$1 '$2' is not valid; expected $4"; }

parse() {
    while [[ $# -gt 0 ]]; do
        case $1 in
        --help | -h)
            usage
            exit 0
            ;;
        -y) yes=1 ;;
        --*=*)
            set_option "${1%%=*}" "${1#*=}"
            given+="${1%%=*} "
            ;;
        -*)
            if [[ $FLAGS == *" $1 "* ]]; then
                set_flag "$1"
            else
                rule "$1" || bad_arguments "unknown option $1"
                [[ $# -gt 1 ]] || bad_arguments "$1 needs a value"
                set_option "$1" "$2"
                given+="$1 "
                shift
            fi
            ;;
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
    read -r -a KUBE <<<"$kubectl"
    [[ ${#KUBE[@]} -gt 0 ]] || bad_arguments "the kubectl command is empty"
    if [[ -n $verify && -n $uninstall ]]; then bad_arguments "--verify and --uninstall exclude each other"; fi
    if [[ -n $uninstall ]]; then
        [[ -z $image ]] || bad_arguments "--uninstall takes no image, got '$image'"
    else
        image=${image:-$DEFAULT_IMAGE}
        [[ -n $image ]] || bad_arguments "which image? Usage: install-dra-driver.sh [options] IMAGE"
        matches IMAGE "$image" '^[A-Za-z0-9][A-Za-z0-9._/:@-]*$' "something like registry.example/neuron-dra-driver:1.0.0"
    fi
}

# variable_of OPTION: the name of its variable.
variable_of() {
    local name=${1#--}
    printf '%s' "${name//-/_}"
}

set_flag() { printf -v "$(variable_of "$1")" 1; }

# rule OPTION: sets the pattern of its values, and the hint for who gives another one. False: it takes no value.
rule() {
    case $1 in
    --emulate) pattern='^[a-z0-9][a-z0-9.-]*$' hint='an instance type such as trn2.48xlarge' ;;
    --emulated-ultraservers)
        pattern='^[1-9][0-9]{0,3}x[24]$' hint='something like 2x4: two servers of four nodes'
        ;;
    --partitions)
        pattern="^$PARTITION(\\.$PARTITION)*\$" hint='chip, core, group, group4 (or another size) and node, joined by dots'
        ;;
    --node-selector) pattern="^$KEY=[A-Za-z0-9._-]*\$" hint='LABEL=VALUE' ;;
    --kubelet-root) pattern='^(/[A-Za-z0-9._-]+)+$' hint='an absolute path such as /var/lib/kubelet' ;;
    --resource-api) pattern='^v1(beta[12])?$' hint='v1, v1beta2 or v1beta1' ;;
    --timeout) pattern='^[1-9][0-9]{0,5}$' hint='a number of seconds' ;;
    --group-timeout) pattern='^[1-9][0-9]{0,4}$' hint='a number of seconds' ;;
    --max-servers-per-namespace)
        pattern='^([1-9][0-9]{0,2}|[1-4][0-9]{3}|5000)$' hint='a number of UltraServers, at most 5000'
        ;;
    --claim-controller)
        pattern="^($CLAIM_CONTROLLER|$CONTROLLER_MANAGER)\$" hint="$CLAIM_CONTROLLER or $CONTROLLER_MANAGER"
        ;;
    --toleration)
        pattern="^(\\*|$KEY(=[A-Za-z0-9._-]*:$EFFECT|:$EFFECT)?)\$"
        hint='KEY=VALUE:EFFECT, KEY:EFFECT, KEY or *, where EFFECT is NoSchedule, PreferNoSchedule or NoExecute'
        ;;
    --image-pull-secret) pattern="^$PART\$" hint='the name of a Secret' ;;
    --env) pattern='^[A-Z][A-Z0-9_]*=[[:print:]]*$' hint='NAME=VALUE with printable characters' ;;
    --resources)
        pattern="^$RESOURCE(,$RESOURCE)*\$" hint='something like requests.cpu=50m,limits.memory=256Mi'
        ;;
    --parameters-policy) pattern='^(on|off)$' hint='on or off' ;;
    --values | --kubectl) pattern='' hint='' ;;
    *) return 1 ;;
    esac
}

# set_option OPTION VALUE
set_option() {
    local pattern hint name
    rule "$1" || bad_arguments "$1 is not an option that takes a value"
    matches "$1" "$2" "$pattern" "$hint"
    name=$(variable_of "$1")
    case $1 in
    --env)
        if [[ ' PARTITIONS NEURON_DRA_DRIVER_EMULATION_MODE EMULATED_ULTRASERVERS ' == *" ${2%%=*} "* ]] ||
            grep -qx " *- name: ${2%%=*}" "$DEPLOY/kustomize/driver/driver.yaml"; then
            bad_arguments "$1 ${2%%=*} is set by the script itself; look for another option"
        fi
        ;;
    --resources)
        if [[ -n $(tr , '\n' <<<"$2" | sed 's/=.*//' | sort | uniq -d) ]]; then bad_arguments "$1 '$2' has one name twice"; fi
        ;;
    esac
    if [[ " $LISTS " == *" $1 "* ]]; then
        printf -v "$name" '%s%s\n' "${!name}" "$2"
    else
        printf -v "$name" '%s' "$2"
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
            [[ $seen != *" $option "* ]] || bad_arguments "'${option#--}' is given twice"
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
    place='' given+=${seen# }
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
    --placer | --ultraserver-operator | --extended-resources)
        [[ $text == true ]] || bad_arguments "expected '${1#--}: true'; to disable it, remove the line and pass --reset"
        set_flag "$1"
        ;;
    --values | --kubectl) bad_arguments "${1#--} is only valid on the command line" ;;
    *) if [[ $given != *" $1 "* ]]; then set_option "$1" "$text"; else (set_option "$1" "$text"); fi ;;
    esac
}

# Takes the defaults for what neither options nor the installation say.
complete() {
    if [[ -n $emulated_ultraservers && -z $emulate ]]; then
        bad_arguments "--emulated-ultraservers goes with --emulate trn2u.48xlarge"
    fi
    if [[ -n $max_servers_per_namespace && -z $ultraserver_operator ]]; then
        bad_arguments "--max-servers-per-namespace goes with --ultraserver-operator"
    fi
    if [[ -n $ultraserver_operator ]]; then placer=1; fi
    if [[ -n $group_timeout && -z $placer ]]; then bad_arguments "--group-timeout goes with --placer"; fi
    kubelet_root=${kubelet_root:-/var/lib/kubelet}
    if [[ -n $placer ]]; then group_timeout=${group_timeout:-300}; fi
}

# The settings as one would give them, a line each. Those with "=" are kept in an annotation of the DaemonSet, the others
# can be read from its fields.
settings() {
    local option name line
    if [[ -n $extended_resources ]]; then echo --extended-resources; fi
    for option in --emulate --emulated-ultraservers --partitions --node-selector --kubelet-root; do
        name=$(variable_of "$option")
        if [[ -n ${!name} ]]; then printf '%s %s\n' "$option" "${!name}"; fi
    done
    if [[ -n $placer ]]; then printf '%s\n' --placer "--group-timeout $group_timeout"; fi
    if [[ -n $ultraserver_operator ]]; then echo --ultraserver-operator; fi
    if [[ -n $max_servers_per_namespace ]]; then echo "--max-servers-per-namespace $max_servers_per_namespace"; fi
    for option in $LISTS --resources --parameters-policy --claim-controller; do
        name=$(variable_of "$option")
        while IFS= read -r line; do
            if [[ -n $line ]]; then printf '%s=%s\n' "$option" "$line"; fi
        done <<<"${!name}"
    done
}

# component PATH EXAMPLE VALUE: takes a component of deploy/, with a value in place of the one that it has as an example:
# what people are told to do in a copy of it.
component() {
    local file text
    components+="deploy/$1, "
    for file in "$scratch/deploy/$1"/*.yaml; do
        text=$(<"$file")
        text=${text//"$2"/$3}
        printf '%s\n' "$text" >"$file"
    done
}

# patch KINDS TEXT: a patch of the objects of these kinds.
patch() {
    local file
    file=$(mktemp "$scratch/patch.XXXXXX")
    printf '%s\n' "$2" >"$file"
    patches+="- {path: ${file##*/}, target: {kind: $1}}$NEWLINE"
}

# of_pods KINDS FIELD VALUE: adds to a field of their pods.
of_pods() { patch "$1" "- {op: add, path: /spec/template/spec/$2, value: $3}"; }

# driver_variable NAME VALUE: behind the others, so that it can refer to them.
driver_variable() { of_pods DaemonSet containers/0/env/- "{name: $1, value: '${2//$QUOTE/$QUOTE$QUOTE}'}"; }

# Adds what --toleration asks for.
add_tolerations() {
    local taint key value
    while read -r taint; do
        key=${taint%%[=:]*} value=${taint#*=}
        case $taint in
        '') continue ;;
        \*) value='operator: Exists' ;;
        *=*) value="key: \"$key\", operator: Equal, value: \"${value%%:*}\"" ;;
        *) value="key: \"$key\", operator: Exists" ;;
        esac
        if [[ $taint == *:* ]]; then value+=", effect: ${taint##*:}"; fi
        of_pods 'DaemonSet|Deployment' tolerations/- "{$value}"
    done <<<"$toleration"
}

add_pull_secrets() {
    local name names=''
    while read -r name; do
        if [[ -n $name ]]; then names+="{name: \"$name\"}, "; fi
    done <<<"$image_pull_secret"
    if [[ -n $names ]]; then of_pods 'DaemonSet|Deployment|Job' imagePullSecrets "[$names]"; fi
}

# Requests and limits take the place of those of the driver.
replace_resources() {
    local kind entries value=''
    for kind in requests limits; do
        entries=$(tr , '\n' <<<"$resources" | sed -n "s/^$kind\.\(.*\)=\(.*\)/\1: \"\2\", /p")
        if [[ -n $entries ]]; then value+="$kind: {$entries}, "; fi
    done
    of_pods DaemonSet containers/0/resources "{$value}"
}

# kustomize BASE [SUFFIX]: writes the objects of a base of deploy/, with the components and the patches so far, and a
# suffix to their names.
kustomize() {
    cat >"$scratch/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [deploy/$1]
components: [$components]
nameSuffix: "${2-}"
images:
# The placeholder has no tag, so the name in its place may have tag and digest.
- {name: NEURON_DRA_IMAGE, newName: "$image"}
patches:
$patches
# Pods come last: what they are allowed, and what they are not, is there before them.
sortOptions:
  order: legacy
  legacySortOptions: {orderFirst: [Namespace], orderLast: [DaemonSet, Deployment]}
END
    kube kustomize "$scratch" || die "kubectl cannot make the objects (see above); version 1.27 or later is required"
}

# A new directory for kustomize, with a copy of deploy/: kustomize reads nothing outside of it. Its image is the placeholder
# again, for which any image can stand.
begin() {
    local file text
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/neuron-dra-driver.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    cp -R "$DEPLOY" "$scratch/deploy"
    components='' patches=''
    if [[ -n $DEFAULT_IMAGE ]]; then
        while read -r file; do
            text=$(<"$file")
            printf '%s\n' "${text//"$DEFAULT_IMAGE"/NEURON_DRA_IMAGE}" >"$file"
        done < <(grep -rlF -- "$DEFAULT_IMAGE" "$scratch/deploy")
    fi
}

offers_cores() { [[ .$partitions. == *.core.* ]]; }

# Writes the objects that the cluster is to have by the options.
render() {
    local kept line
    if [[ -n $emulate ]]; then component $SETTINGS/emulate trn2.48xlarge "$emulate"; fi
    if [[ -n $emulated_ultraservers ]]; then driver_variable EMULATED_ULTRASERVERS "$emulated_ultraservers"; fi
    # The component lets the driver read pods as well, which only the preparation of cores needs.
    if offers_cores; then
        component $SETTINGS/partitions chip.core "$partitions"
    elif [[ -n $partitions ]]; then
        driver_variable PARTITIONS "$partitions"
    fi
    if [[ -n $extended_resources ]]; then components+="deploy/$SETTINGS/extended-resources, "; fi
    if [[ -n $node_selector ]]; then
        component $SETTINGS/node-selector 'example.com/neuron: dra' "${node_selector%%=*}: \"${node_selector#*=}\""
    fi
    # Not for the usual one: kustomize puts first what a patch names, and helm would replace pods for the other order.
    if [[ $kubelet_root != /var/lib/kubelet ]]; then
        component $SETTINGS/kubelet-root /var/lib/k0s/kubelet "$kubelet_root"
    fi
    if [[ $parameters_policy == off ]]; then components+="deploy/$SETTINGS/no-parameters-policy, "; fi
    if has_env NODE_STATUS=off; then components+="deploy/$SETTINGS/no-node-status, "; fi
    if [[ -n $placer ]]; then component $SETTINGS/placer '"300"' "\"$group_timeout\""; fi
    if [[ -n $ultraserver_operator ]]; then components+="deploy/$SETTINGS/ultraserver-operator, "; fi
    if [[ -n $max_servers_per_namespace ]]; then
        component $SETTINGS/ultraservers-per-namespace "value: '8'" "value: '$max_servers_per_namespace'"
    fi
    if [[ $claim_controller == "$CONTROLLER_MANAGER" ]]; then components+="deploy/$SETTINGS/claim-controller, "; fi
    add_tolerations
    add_pull_secrets
    while IFS= read -r line; do
        if [[ -n $line ]]; then driver_variable "${line%%=*}" "${line#*=}"; fi
    done <<<"$env"
    if [[ -n $resources ]]; then replace_resources; fi
    kept=$(settings | grep '^--[a-z-]*=' || true)
    if [[ -n $kept ]]; then
        patch DaemonSet "- op: add
  path: /metadata/annotations
  value:
    $OPTIONS: |
      ${kept//$NEWLINE/$NEWLINE      }"
    fi
    patch DeviceClass "- {op: replace, path: /apiVersion, value: resource.k8s.io/${resource_api:-v1}}"
    local delete="{\$patch: delete, apiVersion: v1, kind: any, metadata: {name: any}}"
    if [[ -z $with_policy ]]; then patch 'ValidatingAdmissionPolicy.*' "$delete"; fi
    if claims_are_silent; then patch "ClusterRole.*, name: $CLAIM_STATUS" "$delete"; fi
    for line in $foreign; do patch "CustomResourceDefinition, name: $line" "$delete"; done
    kustomize kustomize/driver
}

# Whether the driver gets no right to write into claims: below Kubernetes 1.36 nothing but the policy would narrow it.
claims_are_silent() { [[ -z $with_policy ]] || has_env CLAIM_STATUS=off; }

# has_env NAME=VALUE: whether the user gives the driver this variable.
has_env() { [[ $NEWLINE$env$NEWLINE == *"$NEWLINE$1$NEWLINE"* ]]; }

show_context() {
    local context server
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
        warn "the API server has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later have it), so a compromised driver pod" \
            "could write the ResourceSlices and the Nodes of others; claims do not report which devices they got"
    fi
    check_device_plugin
}

space_columns='{.metadata.name}|{.metadata.labels.pod-security\.kubernetes\.io/enforce}'

# Refuses a namespace that would let privileged pods in only from now on. Each version of this script has given its own the
# label for that, which nobody can who has only rights inside of it; objects there may be anybody's who has.
check_namespace() {
    local found level danger remedy
    found=$(kube get namespace "$NAMESPACE" --ignore-not-found -o "jsonpath=$space_columns") ||
        unknown "whether there is a namespace $NAMESPACE"
    IFS='|' read -r space level <<<"$found"
    if [[ -z $space || $level == privileged ]]; then return; fi
    danger="whoever has rights there could run privileged pods, and pods with the driver's rights"
    remedy="delete it; or, if nobody else has rights there (${KUBE[*]} -n $NAMESPACE get rolebindings), label it:"
    remedy+=" ${KUBE[*]} label --overwrite namespace $NAMESPACE pod-security.kubernetes.io/enforce=privileged"
    refuse "  $NAMESPACE" "This namespace was not made for the driver" "$danger; $remedy" \
        "going on, because of --force: in the namespace $NAMESPACE, $danger"
}

# Of what a node writes, the API server checks the form of names, labels and quantities. Anything else is one line only in
# the quotes of %q, which escape what would end it.
node_template='{{range .items}}{{.metadata.name}}|{{with .metadata.labels}}{{index . "node.kubernetes.io/instance-type"}}{{end}}'
node_template+='|{{with .status.allocatable}}{{index . "aws.amazon.com/neuron"}}{{end}}'
node_template+='|{{printf "%q" .status.nodeInfo.kubeletVersion}}{{"\n"}}{{end}}'

# Looks at the nodes that the DaemonSet chooses.
check_nodes() {
    local name version type neuron nodes
    nodes=$(kube get nodes -o "go-template=$node_template" -l "$(chosen_nodes)") ||
        unknown "which nodes the driver would run on"
    while IFS='|' read -r name type neuron version; do
        version=${version//\"/} version=${version:0:80}
        if [[ $version =~ ^v1\.34\.[01]([^0-9]|$) ]]; then
            warn "node $name has kubelet $version, which stops calling DRA drivers after 30 minutes without a call" \
                "(kubernetes/kubernetes#133920): the driver will run there, and offer no device that no claim holds," \
                "until kubelet is updated to 1.34.2 or later"
        elif [[ $version =~ ^v1\.([0-9]+) && ${BASH_REMATCH[1]} -lt 33 ]]; then
            warn "node $name has kubelet $version: 1.33 is the oldest version that supports driver updates" \
                "without interruption"
        fi
        if [[ $neuron =~ ^[1-9] ]]; then
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
    done <<<"$image_pull_secret"
}

check_device_plugin() {
    local found
    found=$(kube get daemonsets --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
        awk '$2 ~ /neuron-device-plugin/ {printf "%s%s/%s", separator, $1, $2; separator = ", "}')
    if [[ -n $found ]]; then
        warn "the Neuron device plugin is installed ($found); it must not run on a node where this driver runs"
    fi
}

release_columns='{.metadata.labels.app\.kubernetes\.io/managed-by}|{.metadata.annotations.meta\.helm\.sh/release-name}'
release_columns+='|{.metadata.annotations.meta\.helm\.sh/release-namespace}'

# check_release COMMAND: refuses to change what helm has installed, and names helm's command instead. A DeviceClass tells:
# its name is the same wherever the release has put the rest, and whatever it calls that.
check_release() {
    local found manager release space remedy
    found=$(kube get deviceclass "$DRIVER" --ignore-not-found -o "jsonpath=$release_columns") || unknown "what is installed"
    IFS='|' read -r manager release space <<<"$found"
    if [[ $manager != Helm ]]; then return; fi
    if [[ -n $release ]]; then
        found="  release $release in the namespace $space" remedy="run helm -n $space ${1//RELEASE/$release} instead"
    else
        found='  a tool that renders the chart, such as Argo CD' remedy='change its settings instead'
    fi
    refuse "$found" "The driver in this cluster was installed from the chart, by" \
        "an update from the chart would revert what this script changes, or stop at it; $remedy" \
        "going on, because of --force: the next update from the chart reverts this, or stops at it"
}

daemonset_columns='{.metadata.name}|{.spec.template.spec.containers[?(@.name=="neuron-dra-driver")].image}'
for variable in NEURON_DRA_DRIVER_EMULATION_MODE EMULATED_ULTRASERVERS KUBELET_PLUGINS_DIRECTORY_PATH; do
    daemonset_columns+="|{.spec.template.spec.containers[*].env[?(@.name==\"$variable\")].value}"
done
terms='.spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms'
daemonset_columns+="|{${terms}[*].matchExpressions[?(@.key==\"node.kubernetes.io/instance-type\")].key}"
daemonset_columns+='|{.spec.template.spec.nodeSelector}'
daemonset_columns+='|{.spec.template.spec.containers[*].env[?(@.name=="PARTITIONS")].value}'
# Its name before, when the words were joined by commas.
daemonset_columns+='{.spec.template.spec.containers[*].env[?(@.name=="DEVICES")].value}'
placer_columns='{.metadata.name}|{.spec.template.spec.containers[*].env[?(@.name=="GROUP_TIMEOUT")].value}'
placer_columns+='|{.spec.template.spec.containers[*].env[?(@.name=="ULTRASERVER_OPERATOR")].value}'
placer_columns+='|{.spec.template.spec.containers[*].env[?(@.name=="MAX_SERVERS_PER_NAMESPACE")].value}'
definition_columns='{range .items[*]}{.metadata.name}|{.metadata.labels.app\.kubernetes\.io/component}{"\n"}{end}'
class_columns='{range .items[*]}{.metadata.name}|{.spec.extendedResourceName}{"\n"}{end}'

# What is installed now: the settings as of `settings`, and single ones of them.
read_installed() {
    local driver renewed options types labels offered ultraservers seconds servers selector='' extended=''
    driver=$(kube -n "$NAMESPACE" get daemonset "$DAEMONSET" --ignore-not-found -o "jsonpath=$daemonset_columns") ||
        unknown "what is installed"
    renewed=$(kube -n "$NAMESPACE" get deployment "$PLACER" --ignore-not-found -o "jsonpath=$placer_columns") ||
        unknown "what is installed"
    options=$(kube -n "$NAMESPACE" get daemonset "$DAEMONSET" --ignore-not-found \
        -o "jsonpath={.metadata.annotations.${OPTIONS//./\\.}}") || unknown "what is installed"
    classes=$(kube get deviceclasses -o "jsonpath=$class_columns") || unknown "which DeviceClasses there are"
    IFS='|' read -r was_there was_image was_emulate ultraservers was_root types labels offered <<<"$driver"
    IFS='|' read -r was_placer seconds was_operator servers <<<"$renewed"
    was_root=${was_root%/plugins}
    if [[ -n $was_there && $classes == *"chip.$DRIVER|a"* ]]; then extended=1; fi
    # Beside a list of instance types, labels are somebody else's addition, which `apply` leaves alone.
    if [[ -z $types && $labels =~ ^\{\"([^\"]+)\":\"([^\"]*)\"\}$ ]]; then
        selector="${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
    elif [[ -z $types ]]; then
        selector=$labels
    fi
    installed=''
    if [[ -n $extended ]]; then installed+="--extended-resources$NEWLINE"; fi
    was --emulate "$was_emulate"
    was --emulated-ultraservers "$ultraservers"
    was --partitions "${offered//,/.}"
    was --node-selector "$selector"
    was --kubelet-root "$was_root"
    if [[ -n $was_placer ]]; then installed+="--placer$NEWLINE"; fi
    was --group-timeout "$seconds"
    if [[ -n $was_operator ]]; then installed+="--ultraserver-operator$NEWLINE"; fi
    was --max-servers-per-namespace "$servers"
    installed+=$options
    installed=${installed%"$NEWLINE"}
}

# was OPTION VALUE: notes a setting that is installed.
was() { if [[ -n $2 ]]; then installed+="$1 $2$NEWLINE"; fi; }

# Keeps of the installed settings what no option changes, and shows both.
keep_settings() {
    local line option will_be
    read_installed
    if [[ -n $was_placer ]]; then placer=1; fi
    while [[ -z $reset ]] && IFS= read -r line; do
        option=${line%%[ =]*}
        if [[ $given == *" $option "* ]]; then continue; fi
        case $line in
        '' | --placer) ;;
        --extended-resources) extended_resources=1 ;;
        --ultraserver-operator) ultraserver_operator=1 ;;
        # Another type need not have UltraServers.
        '--emulated-ultraservers '*) if [[ $emulate == "$was_emulate" ]]; then keep "$option" "${line#* }"; fi ;;
        '--emulate '* | '--partitions '* | '--node-selector '* | '--kubelet-root '* | '--group-timeout '* | \
            '--max-servers-per-namespace '*)
            keep "$option" "${line#* }"
            ;;
        --toleration=* | --image-pull-secret=* | --env=* | --resources=* | --parameters-policy=* | \
            --claim-controller=*)
            keep "$option" "${line#*=}"
            ;;
        *) die "the annotation $OPTIONS of the DaemonSet has an invalid line: '$line'; pass --reset. Nothing was changed" ;;
        esac
    done <<<"$installed"
    complete
    if [[ -n $extended_resources ]]; then check_extended; fi
    if [[ -n $was_there ]]; then
        will_be=$(settings)
        note "installed: $was_image ${installed//$NEWLINE/ }"
        note "will be:   $image ${will_be//$NEWLINE/ }"
    fi
}

# keep OPTION INSTALLED
keep() {
    (set_option "$1" "$2") || die "so the installed $1 cannot be kept; pass that option, or --reset. Nothing was changed"
    set_option "$1" "$2"
}

# Takes --extended-resources back where the cluster has none, and warns where pods would still wait.
check_extended() {
    local version name resource ours
    version=$(kube get --raw /version) || unknown "the version of the API server"
    if [[ ! $version =~ \"minor\":\ *\"([0-9]+) || ${BASH_REMATCH[1]} -lt 36 ]]; then
        extended_resources=''
        warn "Kubernetes 1.36 is the first release in which DRA drivers serve extended resources, so --extended-resources is" \
            "left out: pods with such limits wait. Run this again after an update of the cluster"
        return
    fi
    ours=$(sed -n 's/^  name: //p' "$DEPLOY/deviceclasses.yaml")
    while IFS='|' read -r name resource; do
        if [[ -n $resource && $'\n'$ours$'\n' != *$'\n'"$name"$'\n'* ]] &&
            grep -qxF "  extendedResourceName: $resource" "$DEPLOY/deviceclasses.yaml"; then
            warn "DeviceClass $name offers $resource as well, and a scheduler takes one of the two classes; delete it:" \
                "${KUBE[*]} delete deviceclass $name"
        fi
    done <<<"$classes"
    if ! offers_cores; then
        note "aws.amazon.com/neuroncore is served only by nodes that offer cores: see --partitions, or label these nodes"
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

# Finds the definitions that others have installed, such as AWS's chart: they stay as they are.
check_definitions() {
    local found name part
    found=$(kube get customresourcedefinitions "${DEFINITIONS[@]}" --ignore-not-found -o "jsonpath=$definition_columns") ||
        unknown "who has installed ${DEFINITIONS[*]}"
    while IFS='|' read -r name part; do
        if [[ -n $name && $part != placer ]]; then
            foreign+="$name "
            warn "the CustomResourceDefinition $name was installed by somebody else, and stays as it is"
        fi
    done <<<"$found"
}

# The instance types that the driver knows, joined by commas.
instance_types() {
    sed -n 's/^ *- \([a-z0-9.-]*\.[0-9]*xlarge\)$/\1/p' "$DEPLOY/kustomize/driver/driver.yaml" | paste -sd, -
}

# A label selector for the nodes that the DaemonSet chooses.
chosen_nodes() {
    if [[ -n $node_selector ]]; then
        printf '%s' "$node_selector"
    elif [[ -z $emulate ]]; then
        printf 'node.kubernetes.io/instance-type in (%s)' "$(instance_types)"
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

# Not on the server's side: so that of earlier runs, those of the script before kustomize included, kubectl takes back what
# is no longer asked for, and leaves alone what others have added.
apply() {
    kube apply -f - <"$scratch/objects.yaml" ||
        die "some objects could not be applied (see above); fix the cause and run this again"
    if [[ $parameters_policy == off && -n $with_policy ]]; then
        kube delete validatingadmissionpolicybinding,validatingadmissionpolicy "$PARAMETERS" --ignore-not-found
    fi
    if claims_are_silent; then kube delete clusterrolebinding,clusterrole "$CLAIM_STATUS" --ignore-not-found; fi
    if [[ -n $was_operator && -z $ultraserver_operator ]]; then
        kube delete clusterrole "${PEOPLE[@]}" --ignore-not-found
        kube -n "$NAMESPACE" delete rolebinding,role neuron-dra-driver-ultraservers --ignore-not-found
        if [[ -n $with_policy ]]; then
            kube delete validatingadmissionpolicybinding,validatingadmissionpolicy "$PLACER-workloads" \
                "$PLACER-templates" --ignore-not-found
        fi
    fi
    if [[ -n $restart ]]; then kube -n "$NAMESPACE" rollout restart "daemonset/$DAEMONSET"; fi
    if [[ -n $restart && -n $placer ]]; then kube -n "$NAMESPACE" rollout restart "deployment/$PLACER"; fi
}

# rolled_out KIND/NAME: waits until all pods are of this version, and ready.
rolled_out() { kube -n "$NAMESPACE" rollout status "$1" --timeout="${timeout}s" >&2; }

wait_ready() {
    note "waiting up to $timeout s for the driver to register with kubelet and to publish its devices"
    rolled_out "daemonset/$DAEMONSET" || explain_failure
    if [[ -z $placer ]]; then return; fi
    rolled_out "deployment/$PLACER" ||
        die "the placer is not ready (see above), and pods with the gate neuron.aws.com/ultraserver wait until it is; its" \
            "log has more: ${KUBE[*]} -n $NAMESPACE logs -l app=$PLACER --prefix"
}

explain_failure() {
    local pod ready count=0
    note "error: the driver is not ready everywhere after $timeout s. Its pods:"
    kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" -o wide | printable >&2 || true
    while read -r pod ready; do
        if [[ $ready == true ]]; then continue; fi
        count=$((count + 1))
        if [[ $count -gt 10 ]]; then continue; fi
        lines "" "== last events and log lines of $pod"
        kube -n "$NAMESPACE" get events --field-selector "involvedObject.name=$pod" --no-headers \
            -o custom-columns=REASON:.reason,MESSAGE:.message 2>&1 | tail -n 5 | head -c 16384 |
            printable >&2 || true
        pod_log 16384 "$pod" --tail=15 2>&1 | printable >&2 || true
    done < <(kube -n "$NAMESPACE" get pods -l "app=$DAEMONSET" --no-headers \
        -o 'custom-columns=NAME:.metadata.name,READY:.status.containerStatuses[0].ready')
    if [[ $count -gt 10 ]]; then lines "" "$((count - 10)) more pods are not ready."; fi
    lines "" "What to do:" \
        "  ErrImagePull: the nodes cannot pull $image; see --image-pull-secret for a registry that asks who you are." \
        "  hostPath type check failed, plugins_registry: kubelet's root directory is not $kubelet_root; see --kubelet-root." \
        "  Otherwise, see the log, and docs/reference/faults.md." \
        "What was applied stays. Fix the cause and run this again, or remove the driver with --uninstall."
    exit 1
}

# v1beta1 has the attributes below `basic`. An attribute is any text.
slice_template='{{range .items}}{{.spec.nodeName}}|{{range .spec.devices}}{{.name}} {{end}}|'
slice_template+='{{with .spec.devices}}{{with index . 0}}{{with or .attributes (and .basic .basic.attributes)}}'
slice_template+='{{with .instanceType}}{{printf "%q" .string}}{{end}}{{end}}{{end}}{{end}}{{"\n"}}{{end}}'

show_published() {
    local nodes wanted published table example=examples/specs command=${KUBE[*]}
    nodes=$(kube -n "$NAMESPACE" get daemonset "$DAEMONSET" -o 'jsonpath={.status.desiredNumberScheduled}')
    if [[ $nodes == 0 ]]; then
        wanted='with the label node.kubernetes.io/instance-type of a Neuron instance, such as trn2.48xlarge'
        if [[ -n $node_selector ]]; then
            wanted="with the label $node_selector"
        elif [[ -n $emulate ]]; then
            wanted='of every type, but for Fargate, EKS Auto Mode and hybrid nodes'
        fi
        lines "" "Installed, but no node of the cluster matches, so the driver is not running yet, and pods with claims wait." \
            "It starts automatically on nodes $wanted." \
            "Use --node-selector or --emulate to select others. Your nodes:"
        kube get nodes -L "${node_selector:+${node_selector%%=*},}node.kubernetes.io/instance-type" | printable >&2
        return
    fi
    published=$(kube get resourceslices --field-selector "spec.driver=$DRIVER" -o "go-template=$slice_template")
    # Slices of counters have no device.
    table=$(awk -F'|' '$1 != "" {gsub(/"/, "", $3); if ($3 != "") type[$1] = $3; slices[$1]++; devices[$1] += split($2, names, " ")}
             END {
                 for (node in slices)
                     printf "  %-48s %-16s %3d devices in %d slice(s)\n", node, type[node], devices[node], slices[node]
             }' <<<"$published" | sort)
    lines "" "$nodes node(s) match. Published:" "${table:-  nothing}"
    # A driver that finds no device publishes an empty slice.
    if [[ -z $table || $table == *' 0 devices in '* ]]; then
        warn "not every node offers devices. See the driver's log for what it found there:" \
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
claim_columns+='|{.status.allocation.devices.results[*].pool}|{.status.allocation.devices.results[*].device}'
claim_columns+='|{.status.reservedFor[*].name}{"\n"}{end}'

# claims_in_use NODES NAMES: claims that hold our devices (of these nodes, where any are named; whose names match) and that
# pods are entitled to, as lines "  namespace/name, used by ...". The pool of a node's devices is named like the node.
claims_in_use() {
    kube get resourceclaims --all-namespaces -o "jsonpath=$claim_columns" |
        awk -F'|' -v driver="$DRIVER" -v nodes="$1" -v names="$2" '
            $5 != "" {
                count = split($2, drivers, " ")
                split($3, pools, " ")
                split($4, devices, " ")
                for (i = 1; i <= count; i++)
                    if (drivers[i] == driver && (nodes == "" || index(" " nodes " ", " " pools[i] " ")) && devices[i] ~ names) {
                        print "  " $1 ", used by " $5
                        break
                    }
            }' || unknown "whether devices are in use"
}

# refuse CLAIMS WHICH REMEDY CONSEQUENCE: ends because of these claims, if any; with --force, it says what follows instead.
refuse() {
    if [[ -z $1 ]]; then return; fi
    lines "$2:" "$1"
    if [[ -z $force ]]; then die "$3, or use --force. Nothing was changed"; fi
    warn "$4"
}

# Refuses while pods use devices under the names that beta releases of AWS's driver gave: for the scheduler, the same
# chips under the names of this driver are free.
check_former_names() {
    local claims which="These claims hold devices under names of a beta release of AWS's DRA driver (neurondevice0 instead of"
    claims=$(claims_in_use '' '^neurondevice[0-9]')
    refuse "$claims" "$which${NEWLINE}neuron-device-0), so the scheduler would give the same chips to other pods as well" \
        "delete these pods first (see docs/operate/move.md, From AWS's DRA driver)" \
        "installing anyway, because of --force: chips can be given to two pods"
}

# check_claims NODES: refuses while pods use devices (of these nodes, where any are named).
check_claims() {
    local claims
    claims=$(claims_in_use "$1" '')
    refuse "$claims" "These claims are in use" "without the driver, their pods cannot terminate; delete the pods first" \
        "their pods keep running, but will stay Terminating until the driver is installed again"
}

# Refuses while workloads exist: without the operator, nobody takes its finalizer from those that have UltraServers.
check_workloads() {
    local workloads
    if [[ -z $was_operator ]]; then return; fi
    workloads=$(kube get "${DEFINITIONS[1]}" --all-namespaces \
        -o 'jsonpath={range .items[*]}{"  "}{.metadata.namespace}/{.metadata.name}{"\n"}{end}') ||
        unknown "whether there are UltraServer workloads"
    refuse "$workloads" "These NeuronUltraServerWorkloads exist" \
        "without the operator, those that have UltraServers cannot be deleted; run ${KUBE[*]} delete \
neuronultraserverworkloads --all --all-namespaces first" \
        "those that have UltraServers stay until the operator is installed again, or their finalizer is removed"
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
        check_release 'uninstall RELEASE'
        read_installed
        kubelet_root=${kubelet_root:-$was_root}
        confirm "Remove the Neuron DRA driver from this cluster?"
        check_claims ''
        check_workloads
    fi
    complete
    # The pods first and wholly, else they would publish their slices again.
    remove -n "$NAMESPACE" daemonset "$DAEMONSET" --cascade=foreground --timeout="${timeout}s" ||
        die "the driver's pods have not terminated (see above), so the rest was not removed; run this again when they have"
    remove -n "$NAMESPACE" deployment,poddisruptionbudget "$PLACER"
    remove resourceslices --field-selector "spec.driver=$DRIVER"
    if [[ -n $dry_run ]] || serves_policies; then
        remove validatingadmissionpolicybinding,validatingadmissionpolicy "${POLICIES[@]}" "$PLACER" \
            "$PLACER-own-objects" "$PLACER-annotations" "$PLACER-mirror-pods" "$PLACER-workloads" \
            "$PLACER-templates"
    fi
    # shellcheck disable=SC2046 # one word a class
    remove deviceclass $(sed -n 's/^  name: //p' "$DEPLOY/deviceclasses.yaml")
    remove clusterrolebinding neuron-dra-driver-binding "$CLAIM_STATUS" "$PLACER"
    remove clusterrole neuron-dra-driver-clusterrole "$CLAIM_STATUS" neuron-viewer neuron-devices-viewer "$PLACER" \
        "${PEOPLE[@]}"
    remove -n default rolebinding,role neuron-dra-driver-events
    remove namespace "$NAMESPACE"
    if [[ -n $was_operator ]]; then
        lines "" "Left in the cluster: the CustomResourceDefinitions ${DEFINITIONS[*]}, since all workloads would go with" \
            "them. To remove both, run ${KUBE[*]} delete customresourcedefinitions ${DEFINITIONS[*]}"
    fi
    lines "" "Left on the nodes: $kubelet_root/plugins/$DRIVER, with the record of prepared claims and of the chips' health," \
        "and, until the next boot, /run/neuron-health and files k8s.neuron.aws.com-claim_*.json in /var/run/cdi. A later" \
        "installation continues with them. If none is planned, and no pod uses the devices, you may delete them." \
        "Nodes keep their labels and conditions. To remove them, run" \
        "  ${KUBE[*]} label nodes --all neuron.amazonaws.com/{present,ultraserver-{mode,server-id-{2,4},node-id-{2,4}}}-" \
        "  for node in \$(${KUBE[*]} get nodes -o name); do ${KUBE[*]} patch \$node --subresource status -p \\" \
        "    '{\"status\": {\"conditions\": [{\"type\": \"NeuronHealth\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronKubeletUnsupported\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronDevicesHeldBack\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronDriverNotLoaded\", \"\$patch\": \"delete\"}," \
        "      {\"type\": \"NeuronPartitionsInvalid\", \"\$patch\": \"delete\"}]}}'; done"
}

# suffix_of TYPE: of the name of the Job that checks nodes of this type.
suffix_of() { printf -- '-%s' "$(tr -c 'a-z0-9\n' - <<<"$1" | sed 's/^-*//;s/-*$//')"; }

# render_verification NODE SUFFIX RUNTIME: writes the Job that checks a node's host. All go into YAML: see `verify`.
render_verification() {
    local arguments="[--container-runtime, \"$3\"]"
    if [[ -n $emulate ]]; then component verify/emulate trn2.48xlarge "$emulate"; fi
    add_pull_secrets
    patch Job "apiVersion: batch/v1
kind: Job
metadata: {name: neuron-verify}
spec:
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchFields: [{key: metadata.name, operator: In, values: [\"$1\"]}]
      containers:
      - {name: lines, args: $arguments}
      - {name: report, args: $arguments}
      volumes:
      - {name: plugins-registry, hostPath: {path: $kubelet_root/plugins_registry}}
      - {name: device-plugins, hostPath: {path: $kubelet_root/device-plugins}}
      - {name: pod-resources, hostPath: {path: $kubelet_root/pod-resources}}"
    kustomize verify "$2"
}

# verify_node NODE TYPE RUNTIME NUMBER: runs that Job and prints what it says; 1 if a line differs, 2 without a result.
verify_node() {
    local suffix job status='' waited=0 report="verify-$2.json"
    suffix=$(suffix_of "$2")
    # The Jobs of nodes before are left, to be looked at.
    if [[ $4 -gt 1 ]]; then suffix+="-$4"; fi
    job=neuron-verify$suffix
    lines "" "$2 (node $1):"
    kube -n "$NAMESPACE" delete job "$job" --ignore-not-found --wait >/dev/null </dev/null || return 2
    begin
    render_verification "$1" "$suffix" "$3" >"$scratch/job.yaml"
    kube apply -f - >/dev/null <"$scratch/job.yaml" || return 2
    while [[ ! $status =~ (Complete|Failed)=True ]]; do
        if [[ $waited -ge $timeout ]]; then
            warn "no result after $timeout seconds; see: ${KUBE[*]} -n $NAMESPACE describe pods -l job-name=$job"
            return 2
        fi
        sleep 1
        waited=$((waited + 1))
        status=$(kube -n "$NAMESPACE" get job "$job" \
            -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {end}' </dev/null) || return 2
    done
    # Its kubelet says what these are, and how long they are.
    container_log "$job" lines 262144 "$scratch/lines" || status=lost
    printable <"$scratch/lines"
    if [[ $status != lost ]]; then
        container_log "$job" report 4194304 "$scratch/report" && put "$scratch/report" "$report" || status=lost
    fi
    kube -n "$NAMESPACE" delete job "$job" --wait=false >/dev/null </dev/null || status+=' and not deleted'
    if [[ $status == lost* ]]; then
        warn "the logs of its Job could not be read to their end: they are missing, too slow or too long"
        return 2
    fi
    note "report: $report"
    [[ $status == *Complete=True* && $status != *' and not deleted' ]]
}

# container_log JOB CONTAINER BYTES FILE: fails where the log does not end before so many bytes, or in time.
container_log() {
    local status=0
    pod_log "$3" "job/$1" -c "$2" --tail=-1 >"$4" 2>"$scratch/said" || status=1
    printable <"$scratch/said" >&2
    if [[ $(wc -c <"$4") -ge $3 ]]; then status=1; fi
    return "$status"
}

# put FILE NAME: a copy of the file under that name in the current directory, whose owner may have put a link there: it is
# replaced, and what it leads to is left alone.
put() { rm -f -- "$2" && (set -o noclobber && cat -- "$1" >"$2"); }

verify_columns='NAME:.metadata.name,TYPE:.metadata.labels.node\.kubernetes\.io/instance-type'

# runtime_of NODE: its container runtime with the version, as its kubelet likes to say: nothing else than such a text passes.
runtime_of() {
    local runtime
    runtime=$(kube get node "$1" -o 'jsonpath={.status.nodeInfo.containerRuntimeVersion}' </dev/null) || return 1
    if [[ ! $runtime =~ ^$RUNTIME$ ]]; then
        warn "node $1 says that its container runtime is '${runtime:0:80}', not something like containerd://2.1.5, so no Job" \
            "runs there; another node of its type is looked for. See what is there: ${KUBE[*]} get node $1 -o yaml"
        return 1
    fi
    printf '%s' "$runtime"
}

# verify_type TYPE NODES: goes from node to node until one gives a result, with three Jobs at most: a node whose kubelet
# hangs or lies does not stand for the others. Those without a result are added to `silent`. The status is that of
# verify_node.
verify_type() {
    local name runtime status number=0
    while read -r name; do
        status=2
        if runtime=$(runtime_of "$name"); then
            number=$((number + 1)) status=0
            verify_node "$name" "$1" "$runtime" "$number" || status=$?
        fi
        if [[ $status != 2 ]]; then return "$status"; fi
        silent+=", $name ($1)"
        if [[ $number == 3 ]]; then break; fi
    done <<<"$2"
    return 2
}

# Checks one node of each instance type that has Neuron chips; with --node-selector or --emulate, of each type at all.
verify() {
    local type found names status made='' seen='' silent='' lacking='' failed='' selector=()
    complete
    if [[ -n $dry_run ]]; then
        begin
        render_verification NODE_NAME -instance-type RUNTIME
        return
    fi
    show_context
    confirm "Run a Job on one node of each instance type of this cluster?"
    if [[ -n $node_selector ]]; then selector=(-l "$node_selector"); fi
    found=$(kube get nodes --no-headers ${selector[@]+"${selector[@]}"} -o "custom-columns=$verify_columns") ||
        unknown "which nodes there are"
    check_namespace
    if [[ -z $space ]]; then
        made=1
        kube create namespace "$NAMESPACE" >/dev/null
    fi
    kube label --overwrite namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=privileged >/dev/null
    found=$(tr -d '<>' <<<"$found")
    while read -r type; do
        if [[ ! $type =~ ^$WORD$ ]]; then continue; fi
        if [[ -z $node_selector && -z $emulate ]] && [[ ,$(instance_types), != *",$type,"* ]]; then continue; fi
        names=$(awk -v type="$type" '$2 "" == type {print $1}' <<<"$found" | grep -Ex "$PART") || continue
        seen=1 status=0
        verify_type "$type" "$names" || status=$?
        if [[ $status == 2 ]]; then lacking+=", $type"; fi
        if [[ $status != 0 ]]; then failed=1; fi
    done < <(awk '!seen[$2]++ {print $2}' <<<"$found")
    if [[ -n $made ]]; then kube delete namespace "$NAMESPACE" --wait=false >/dev/null; fi
    if [[ -z $seen ]]; then
        die "no node has the label of an instance type with Neuron chips; name the nodes with --node-selector"
    fi
    if [[ -n $silent ]]; then warn "no result from ${silent#, }"; fi
    if [[ -n $lacking ]]; then warn "so nothing is known of ${lacking#, }"; fi
    if [[ -n $failed || -n $silent ]]; then
        die "some lines differ, or have no result; please send the reports in (docs/reference/hardware.md)"
    fi
}

main() {
    parse "$@"
    if [[ -z $uninstall || -z $dry_run ]]; then
        command -v "${KUBE[0]}" >/dev/null || die "'${KUBE[0]}' was not found; install kubectl, or name it with --kubectl"
    fi
    if [[ -n $uninstall ]]; then
        uninstall
    elif [[ -n $verify ]]; then
        verify
    elif [[ -n $dry_run ]]; then
        complete
        begin
        render
    else
        show_context
        preflight
        check_release 'upgrade RELEASE charts/neuron-helm-chart --reuse-values --set ...'
        keep_settings
        check_namespace
        check_nodes
        check_former_names
        if [[ -n $image_pull_secret ]]; then check_pull_secrets; fi
        if [[ -n $ultraserver_operator ]]; then check_definitions; fi
        if [[ -n $was_there ]]; then check_nodes_left; fi
        begin
        render >"$scratch/objects.yaml"
        confirm "Install the Neuron DRA driver into this cluster?"
        apply
        if [[ -n $extended_resources ]]; then check_extended_stored; fi
        wait_ready
        show_published
    fi
}

main "$@"
