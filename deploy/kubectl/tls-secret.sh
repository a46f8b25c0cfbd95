#!/usr/bin/env bash
# Prints the Secret k8s-neuron-scheduler-tls: certificates with which my-scheduler and the scheduler extender know each
# other. Needs openssl. Works with the bash 3.2 and the LibreSSL of macOS, too.
#
#   deploy/kubectl/tls-secret.sh | kubectl apply --server-side -f -
#
# The key of the authority is thrown away, so nobody can make more certificates. Each run makes new ones: apply them, and
# restart the Deployments k8s-neuron-scheduler and my-scheduler. They are valid for ten years.
set -euo pipefail

case ${1:-} in
'') ;;
-h | --help)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'
    exit 0
    ;;
*)
    echo "error: $0 takes no argument, got '$1'" >&2
    exit 2
    ;;
esac
command -v openssl >/dev/null || {
    echo "error: there is no openssl here. Nothing was made." >&2
    exit 1
}

service=k8s-neuron-scheduler.kube-system
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
umask 077

cat >authority.cnf <<END
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = k8s-neuron-scheduler-ca
[extensions]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
END

# certificate FILE NAME EXTENSIONS: FILE.key and FILE.crt, signed by the authority.
certificate() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
    printf 'basicConstraints = critical,CA:FALSE\nkeyUsage = critical,digitalSignature\nauthorityKeyIdentifier = keyid\n%s\n' \
        "$3" >"$1.cnf"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days 3650 -sha256 \
        -extfile "$1.cnf" -out "$1.crt"
}

{
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -config authority.cnf -days 3650 -sha256 -out ca.crt
    # The extender's replicas pass requests on to each other, so their certificate is a client's as well.
    certificate tls "$service.svc" "extendedKeyUsage = serverAuth,clientAuth
subjectAltName = DNS:k8s-neuron-scheduler,DNS:$service,DNS:$service.svc,DNS:$service.svc.cluster.local,DNS:localhost,IP:127.0.0.1"
    certificate client kube-scheduler "extendedKeyUsage = clientAuth"
} >openssl.log 2>&1 || {
    cat openssl.log >&2
    echo "error: openssl failed (see above). Nothing was made." >&2
    exit 1
}

cat <<END
apiVersion: v1
kind: Secret
metadata:
  name: k8s-neuron-scheduler-tls
  namespace: kube-system
  labels:
    app: neuron-scheduler
type: kubernetes.io/tls
data:
END
for name in ca.crt client.crt client.key tls.crt tls.key; do
    printf '  %s: %s\n' "$name" "$(base64 <"$name" | tr -d '\n')"
done
