#!/usr/bin/env bash
# Installs the Neuron DRA driver into the cluster of the current kubectl context.
#
# Usage: install-dra-driver.sh [options] IMAGE
#        install-dra-driver.sh --uninstall [options]
#
#   IMAGE                the driver's container image, best with a tag that is never reused or with a digest
#   --emulate TYPE       nodes pretend to be instances of TYPE, such as trn2.48xlarge; the driver then runs on every node
#   --emulated-ultraservers SxN  with --emulate: nodes make up S UltraServers of N nodes, such as 2x4, by the number at the
#                        end of a node's name: node-1 to node-4 are the first server
#   --node-selector K=V  run on the nodes with this label instead of on the known instance types
#   --kubelet-root DIR   kubelet's root directory on the nodes (default /var/lib/kubelet)
#   --placer             also run the placer, which keeps groups of pods on UltraServers from blocking each other
#   --group-timeout S    with --placer: a group that lacks nodes for so many seconds is made anew elsewhere (default 300)
#   --restart            replace the driver's pods even if nothing changed (an image of the same name was loaded anew)
#   --uninstall          remove the driver; refuses while pods use its devices, but with --force
#   --force              uninstall although pods use devices: they stay Terminating until the driver is back
#   --dry-run            print the YAML (with --uninstall: the commands) and ask no cluster for anything
#   --resource-api V     v1, v1beta2 or v1beta1 of resource.k8s.io for the DeviceClass (default: what the cluster serves)
#   --timeout SECONDS    how long to wait for the driver to be ready (default 300)
#   --kubectl COMMAND    kubectl with its leading arguments, such as "kubectl --context test" (default $KUBECTL or kubectl)
#   --yes, -y            do not ask (without a terminal nothing is asked either)
#   --help, -h           this text
#
# Running it again is safe: it changes only what differs. Exit status: 0 done, 1 failed or refused, 2 bad arguments.
# Works with the bash 3.2 and the sed of macOS, too.
set -euo pipefail

NAMESPACE='neuron-dra-driver'
DAEMONSET='neuron-dra-driver-kubelet-plugin'
DRIVER='neuron.aws.com'
POLICIES=(neuron-dra-driver-own-slices neuron-dra-driver-own-node)
PLACER='neuron-dra-driver-placer'
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MANIFESTS=$HERE/manifests

image='' emulate='' ultraservers='' selector_key='' selector_value='' kubelet_root=/var/lib/kubelet resource_api=''
timeout=300 restart='' uninstall='' force='' dry_run='' yes='' with_policy=1 desired=0
placer='' group_timeout=300
kubectl_command=${KUBECTL:-kubectl}

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; }
note() { printf '%s\n' "$*" >&2; }
lines() { printf '%s\n' "$@" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
bad_arguments() {
    printf 'error: %s\nTry --help.\n' "$*" >&2
    exit 2
}
kube() { "${KUBE[@]}" "$@"; }

# matches NAME VALUE REGEX HINT: the values go into YAML, so nothing but the expected characters may pass.
matches() { [[ $2 =~ $3 ]] || bad_arguments "$1 '$2' is not valid; $4"; }

parse() {
    while [[ $# -gt 0 ]]; do
        case $1 in
        --emulate | --emulated-ultraservers | --node-selector | --kubelet-root | --resource-api | --timeout | --kubectl | \
            --group-timeout)
            [[ $# -gt 1 ]] || bad_arguments "$1 needs a value"
            set_option "$1" "$2"
            shift
            ;;
        --*=*) set_option "${1%%=*}" "${1#*=}" ;;
        --restart) restart=1 ;;
        --placer) placer=1 ;;
        --uninstall) uninstall=1 ;;
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
    read -r -a KUBE <<<"$kubectl_command"
    [[ ${#KUBE[@]} -gt 0 ]] || bad_arguments "the kubectl command is empty"
    if [[ -n $ultraservers && -z $emulate ]]; then bad_arguments "--emulated-ultraservers goes with --emulate trn2u.48xlarge"; fi
    if [[ -n $uninstall ]]; then
        [[ -z $image ]] || bad_arguments "--uninstall takes no image, got '$image'"
    else
        [[ -n $image ]] || bad_arguments "which image? Usage: install-dra-driver.sh [options] IMAGE"
        matches IMAGE "$image" '^[A-Za-z0-9][A-Za-z0-9._/:@-]*$' "expected something like registry.example/neuron-dra-driver:1.0.0"
    fi
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
    --node-selector)
        matches "$1" "$2" '^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9][A-Za-z0-9._-]*=[A-Za-z0-9._-]*$' "expected LABEL=VALUE"
        selector_key=${2%%=*}
        selector_value=${2#*=}
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
    --kubectl) kubectl_command=$2 ;;
    *) bad_arguments "there is no option $1 with a value" ;;
    esac
}

# without NAME: a sed expression that drops the block between the marks of that name.
without() { printf '/# >>> %s$/,/# <<< %s$/d;' "$1" "$1"; }

render() {
    local drop=''
    if [[ -n $emulate ]]; then
        drop+=$(without instance-types)$(without hardware)
    else
        drop+=$(without emulation)
    fi
    if [[ -z $ultraservers ]]; then drop+=$(without emulated-ultraservers); fi
    if [[ -n $selector_key ]]; then drop+=$(without instance-types); else drop+=$(without node-selector); fi
    cat "$MANIFESTS/namespace.yaml"
    echo ---
    cat "$MANIFESTS/rbac.yaml"
    echo ---
    sed "/^#/d;s|resource.k8s.io/v1$|resource.k8s.io/${resource_api:-v1}|" "$MANIFESTS/deviceclass.yaml"
    if [[ -n $with_policy ]]; then
        echo ---
        cat "$MANIFESTS/admission-policy.yaml"
    fi
    echo ---
    sed -e '/^#/d' -e "$drop" -e '/# >>> /d' -e '/# <<< /d' -e "s|NEURON_DRA_IMAGE|$image|" \
        -e "s|/var/lib/kubelet|$kubelet_root|" -e "s|EMULATED_INSTANCE_TYPE|$emulate|" \
        -e "s|ULTRASERVER_TOPOLOGY|$ultraservers|" \
        -e "s|NODE_SELECTOR_KEY|$selector_key|" -e "s|NODE_SELECTOR_VALUE|$selector_value|" "$MANIFESTS/daemonset.yaml"
    if [[ -n $placer ]]; then render_placer; fi
}

render_placer() {
    local drop=''
    if [[ -z $with_policy ]]; then drop=$(without policy); fi
    echo ---
    sed -e "$drop" -e '/^#/d' -e "s|NEURON_DRA_IMAGE|$image|" -e "s|GROUP_TIMEOUT_SECONDS|$group_timeout|" \
        "$MANIFESTS/placer.yaml"
}

confirm() {
    local context server answer
    command -v "${KUBE[0]}" >/dev/null || die "there is no '${KUBE[0]}' here; install kubectl, or name it with --kubectl"
    context=$(kube config current-context 2>/dev/null) || context='(none: kubectl decides)'
    server=$(kube config view --minify -o 'jsonpath={.clusters[0].cluster.server}' 2>/dev/null) || server='(unknown)'
    note "context: $context"
    note "server:  $server"
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

# Finds out what the cluster can do, and says what will not work before anything is changed.
preflight() {
    local group
    group=$(kube get --raw /apis) || die "the API server does not answer (see above); nothing was changed"
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
        warn "the API server has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later do), so a driver pod that is" \
            "taken over could write the ResourceSlices and the Nodes of others"
    fi
    check_nodes
    check_device_plugin
}

node_columns='NAME:.metadata.name,KUBELET:.status.nodeInfo.kubeletVersion'
node_columns+=',TYPE:.metadata.labels.node\.kubernetes\.io/instance-type,NEURON:.status.allocatable.aws\.amazon\.com/neuron'

check_nodes() {
    local name version type neuron minor
    while read -r name version type neuron; do
        if [[ $version =~ ^v1\.34\.[01]([^0-9]|$) ]]; then
            warn "node $name has kubelet $version: after 30 minutes without a claim it stops calling DRA drivers, and pods" \
                "hang (kubernetes/kubernetes#133920); update it to 1.34.2 or later"
        elif [[ $version =~ ^v1\.([0-9]+) ]]; then
            minor=${BASH_REMATCH[1]}
            if [[ $minor -lt 33 ]]; then
                warn "node $name has kubelet $version: 1.33 is the oldest that can update the driver without a gap"
            fi
        fi
        if [[ ${neuron:-<none>} != '<none>' && $neuron != 0 ]]; then
            warn "node $name ($type) offers $neuron aws.amazon.com/neuron through a device plugin as well; the two know" \
                "nothing of each other and would give a device to two pods: keep one of them off this node"
        fi
    done < <(kube get nodes --no-headers -o "custom-columns=$node_columns")
}

check_device_plugin() {
    local found
    found=$(kube get daemonsets --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
        awk '$2 ~ /neuron-device-plugin/ {printf "%s%s/%s", separator, $1, $2; separator = ", "}')
    if [[ -n $found ]]; then
        warn "the Neuron device plugin is installed ($found); it must not run on a node where this driver runs"
    fi
}

apply() {
    render | kube apply -f - || die "not everything could be applied (see above); correct that and run this again"
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
        "  ErrImagePull: the nodes cannot pull $image." \
        "  hostPath type check failed, plugins_registry: kubelet's root directory is not $kubelet_root; see --kubelet-root." \
        "  Else the log says it; docs/troubleshooting.md has more." \
        "What was applied stays. Run this again after the correction, or remove it with --uninstall."
    exit 1
}

# v1beta1 has the attributes below `basic`.
slice_columns='{range .items[*]}{.spec.nodeName}|{.spec.devices[0].attributes.instanceType.string}'
slice_columns+='{.spec.devices[0].basic.attributes.instanceType.string}|{.spec.devices[*].name}{"\n"}{end}'

show_published() {
    local published table example=examples/specs command=${KUBE[*]}
    if [[ $desired == 0 ]]; then
        lines "" "Installed, but no node of the cluster matches, so the driver runs nowhere yet. It starts by itself on nodes" \
            "with a known instance type; --node-selector and --emulate choose others. Your nodes:"
        kube get nodes -L node.kubernetes.io/instance-type >&2
        return
    fi
    published=$(kube get resourceslices --field-selector "spec.driver=$DRIVER" -o "jsonpath=$slice_columns")
    table=$(awk -F'|' '$1 != "" {type[$1] = $2; slices[$1]++; devices[$1] += split($3, names, " ")}
             END {
                 for (node in type)
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
    if [[ $published == *neuron-node* ]]; then
        lines "  $command apply -f $example/2-node-inference-us.yaml   # pairs of whole nodes; needs LeaderWorkerSet" \
            "  $command logs vllm-2-node-0                           # what the first of them got"
    else
        lines "  $command apply -f $example/1x4-connected-devices.yaml   # four connected devices of a trn2.48xlarge" \
            "  $command logs pod0                                      # what the pod got"
    fi
}

claim_columns='{range .items[*]}{.metadata.namespace}/{.metadata.name}|{.status.allocation.devices.results[*].driver}'
claim_columns+='|{.status.reservedFor[*].name}{"\n"}{end}'

# Claims that hold our devices and that pods are entitled to, as lines "  namespace/name, used by ...".
claims_in_use() {
    kube get resourceclaims --all-namespaces -o "jsonpath=$claim_columns" |
        awk -F'|' -v driver="$DRIVER" '$3 != "" && index(" " $2 " ", " " driver " ") {print "  " $1 ", used by " $3}'
}

remove() {
    if [[ -n $dry_run ]]; then
        printf '%s delete --ignore-not-found %s\n' "${KUBE[*]}" "$*"
    else
        kube delete --ignore-not-found "$@"
    fi
}

uninstall() {
    local claims
    if [[ -z $dry_run ]]; then
        confirm "Remove the Neuron DRA driver from this cluster?"
        claims=$(claims_in_use) || die "cannot tell whether devices are in use (see above); nothing was changed"
        if [[ -n $claims ]]; then
            lines "These claims are in use:" "$claims"
            if [[ -z $force ]]; then
                die "without the driver their pods cannot end; delete the pods first, or use --force. Nothing was changed"
            fi
            warn "their pods keep running, but will stay Terminating until the driver is installed again"
        fi
    fi
    # The pods first and wholly, else they would publish their slices again.
    remove -n "$NAMESPACE" daemonset "$DAEMONSET" --cascade=foreground --timeout="${timeout}s" ||
        die "the driver's pods have not ended (see above), so the rest was left; run this again when they have"
    remove -n "$NAMESPACE" deployment "$PLACER"
    remove resourceslices --field-selector "spec.driver=$DRIVER"
    if [[ -n $dry_run ]] || serves_policies; then
        remove validatingadmissionpolicybinding,validatingadmissionpolicy "${POLICIES[@]}" "$PLACER"
    fi
    remove deviceclass "$DRIVER"
    remove clusterrolebinding neuron-dra-driver-binding "$PLACER"
    remove clusterrole neuron-dra-driver-clusterrole "$PLACER"
    remove namespace "$NAMESPACE"
    lines "" "Left on the nodes: the record of prepared claims in $kubelet_root/plugins/$DRIVER. A later installation goes" \
        "on from it; where the driver will not come back, and no pod uses its devices, it may be deleted." \
        "Nodes of UltraServers keep their labels: take them away with" \
        "  ${KUBE[*]} label nodes --all neuron.amazonaws.com/ultraserver-{mode,server-id-2,node-id-2,server-id-4,node-id-4}-"
}

main() {
    parse "$@"
    if [[ -n $uninstall ]]; then
        uninstall
    elif [[ -n $dry_run ]]; then
        render
    else
        confirm "Install the Neuron DRA driver into this cluster?"
        preflight
        apply
        if ! wait_ready; then explain_failure; fi
        if [[ -n $placer ]]; then wait_placer; fi
        show_published
    fi
}

main "$@"
