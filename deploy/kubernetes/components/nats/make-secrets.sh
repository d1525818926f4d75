#!/bin/sh
# Prints the Secrets that the components nats, nats-users and console need, with new passwords and certificates:
#
#     sh make-secrets.sh [NAMESPACE [NAME...]] | kubectl create -f -
#
#     sh make-secrets.sh --files FOLDER [NAMESPACE [NAME...]]     the files of static pods instead, below FOLDER
#
# NAMESPACE is berth unless it is given. NAMEs are further names or addresses of the servers for their certificate, such as
# those of a load balancer. The authority's key is not kept: to renew a certificate, make all Secrets anew.
# Needs openssl. Nothing but FOLDER is left on this machine. As root, the files get the pods' users as their owners.
set -eu
files=
if [ "${1:-}" = --files ]; then
  files=$2
  shift 2
fi
namespace=${1:-berth}
[ $# -eq 0 ] || shift
days=3650
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
umask 077

names() {  # of the servers, as subjectAltName has them
  printf 'DNS:localhost,IP:127.0.0.1'
  for name in nats nats-0.nats nats-1.nats nats-2.nats nats-3.nats nats-4.nats; do
    printf ',DNS:%s,DNS:%s.%s.svc,DNS:%s.%s.svc.cluster.local' "$name" "$name" "$namespace" "$name" "$namespace"
  done
  for name in "$@"; do
    case $name in
      *[!0-9.]*) case $name in *:*) printf ',IP:%s' "$name" ;; *) printf ',DNS:%s' "$name" ;; esac ;;
      *) printf ',IP:%s' "$name" ;;
    esac
  done
}

cat > "$folder/openssl.conf" <<END
[req]
distinguished_name = subject
[subject]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = $(names "$@")
END
quietly() {
  "$@" 2> "$folder/said" || { cat "$folder/said" >&2; exit 1; }
}
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config $folder/openssl.conf"
# shellcheck disable=SC2086 - options, without blanks in them
{
  quietly openssl req -x509 $new_key -extensions authority -days $days -subj "/CN=NATS of berth" \
    -keyout "$folder/ca.key" -out "$folder/ca.crt"
  quietly openssl req $new_key -subj "/CN=nats.$namespace" -keyout "$folder/tls.key" -out "$folder/tls.csr"
  quietly openssl x509 -req -in "$folder/tls.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial \
    -extfile "$folder/openssl.conf" -extensions server -days $days -out "$folder/tls.crt"
}

secret() {  # NAME KEY FILE [KEY FILE]...
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\n' "$1" "$namespace"
  printf '  labels: {app.kubernetes.io/part-of: berth}\ndata:\n'
  shift
  while [ $# -gt 0 ]; do
    printf '  %s: %s\n' "$1" "$(base64 < "$2" | tr -d '\n')"
    shift 2
  done
}

users="apply watcher scorer binder collector facts shadow people"
for user in $users; do
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "$folder/$user"
  printf '%s_PASSWORD: "%s"\n' "$user" "$(cat "$folder/$user")" >> "$folder/passwords.conf"
done

if [ -n "$files" ]; then
  here=$(dirname "$0")
  mkdir -p "$files"
  chmod 755 "$files"
  mkdir "$files/nats" "$files/nats/credentials" "$files/users"
  chmod 755 "$files/users"
  cp "$here/configuration/nats.conf" "$here/../../../compose/nats/accounts.conf" "$files/nats"
  cp "$folder/passwords.conf" "$files/nats/credentials/nats.conf"
  cp "$folder/tls.crt" "$folder/tls.key" "$folder/ca.crt" "$files/nats/credentials"
  for user in $users; do
    mkdir "$files/users/$user"
    cp "$folder/$user" "$files/users/$user/password"
    cp "$folder/ca.crt" "$files/users/$user"
  done
  [ "$(id -u)" != 0 ] || chown -R 65500:65500 "$files/nats"
  [ "$(id -u)" != 0 ] || chown -R 65532:65532 "$files/users"
  exit 0
fi

for user in $users; do
  secret "berth-nats-$user" password "$folder/$user" ca.crt "$folder/ca.crt"
done
od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "$folder/console"
secret berth-console token "$folder/console"
secret berth-nats-server passwords.conf "$folder/passwords.conf" \
  tls.crt "$folder/tls.crt" tls.key "$folder/tls.key" ca.crt "$folder/ca.crt"
