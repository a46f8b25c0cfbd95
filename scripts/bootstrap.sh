#!/usr/bin/env bash
# Installs missing system packages that a part of the project needs.
#   scripts/bootstrap.sh lab     a real Kubernetes on this machine (scripts/cluster)
#   scripts/bootstrap.sh base    a registry's image as the base of the driver's (scripts/build-image --base)
#   scripts/bootstrap.sh pins    the signatures of Debian's indexes (scripts/build-image --renew-base)
#   scripts/bootstrap.sh images  tests that run arm64 programs, and that build the Dockerfile (scripts/test nightly)
#   scripts/bootstrap.sh tests   what commands of the pages use (scripts/test ci, nightly)
#   scripts/bootstrap.sh venv    virtual environments of the system's Python
# Prints nothing and needs no root if nothing is missing. It does not install Go: scripts/cluster uses the system's Go,
# or its own copy from PyPI.
set -euo pipefail

# What must be there: a command or a file, and the Debian or Ubuntu package that brings it.
LAB="runc:runc /usr/lib/cni/bridge:containernetworking-plugins ip:iproute2 nsenter:util-linux openssl:openssl
  /bin/busybox:busybox-static /bin/bash-static:bash-static"
BASE="skopeo:skopeo"
PINS="gpgv:gpgv /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring"
IMAGES="$PINS qemu-aarch64:qemu-user buildah:buildah"
TESTS="jq:jq"
VENV="ensurepip:python3-venv"

usage() {
    sed -n '2,10s/^# \{0,1\}//p' "$0"
}

is_there() {
    case $1 in
    /usr/lib/cni/*) [[ -x $1 || -x /opt/cni/bin/${1##*/} ]] ;;
    /*) [[ -e $1 ]] ;;
    ensurepip) python3 -I -c 'import ensurepip, venv' 2>/dev/null ;;
    *) PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null ;;
    esac
}

case ${1:-} in
lab) wanted=$LAB ;;
base) wanted=$BASE ;;
pins) wanted=$PINS ;;
images) wanted=$IMAGES ;;
tests) wanted=$TESTS ;;
venv) wanted=$VENV ;;
-h | --help)
    usage
    exit 0
    ;;
*)
    usage >&2
    exit 2
    ;;
esac

missing=()
for entry in $wanted; do
    is_there "${entry%%:*}" || missing+=("${entry##*:}")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
    echo "Missing: ${missing[*]} (names of the Debian packages). This system has no apt-get, so nothing was" \
        "installed. Install them with the system's own package manager and try again." >&2
    exit 1
fi
if ((EUID != 0)); then
    echo "Missing system packages: ${missing[*]}. Installing them needs root; nothing was installed. Run as root:" \
        "apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi
echo "installing system packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "apt-get could not install ${missing[*]}; its last lines are above. Nothing else was done." >&2
    exit 1
fi
