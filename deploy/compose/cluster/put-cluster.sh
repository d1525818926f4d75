#!/bin/sh
# Copies a kubeconfig to where watcher and binder read it (readable by group 65510 only), and the configuration to where
# every service reads it.
# usage: put-cluster.sh FILE [SERVER]     SERVER replaces the server address in the file
set -eu
file=$1
server=${2:-}
configuration=/run/berth/configuration/scheduler.yaml
to=/run/berth/kubeconfig/kubeconfig
umask 077

refuse() {
  echo "copying the kubeconfig: $1" >&2
  exit 2
}

[ -f "$file" ] || refuse "there is no such file: name one with KUBECONFIG_FILE"
if [ -n "$server" ]; then
  sed "s|^\( *server: \).*|\1$server|" "$file" > "$to.new"
else
  if grep -Eq '(^|[ {,])"?server"?: *["'"'"']?https?://(127\.|0\.0\.0\.0|localhost|\[::1?\])' "$file"; then
    refuse "its server is an address of this machine, which in a container is the container itself: use an address that containers can reach (kind get kubeconfig --internal, host.docker.internal; docs/compose.md)"
  fi
  if grep -Eq '^ *"?(certificate-authority|client-certificate|client-key|tokenFile)"?:' "$file"; then
    refuse "it names other files, which are not in the container: use the output of kubectl config view --raw --flatten --minify"
  fi
  if grep -Eq '^ *"?exec"?:' "$file"; then
    refuse "it runs a program to log in, which is not in the container: use a kubeconfig with a token or a certificate"
  fi
  cp "$file" "$to.new"
fi
chmod 440 "$to.new"
chown 0:65510 "$to.new"
mv "$to.new" "$to"
chmod 755 "${to%/*}"

cp /etc/given/scheduler.yaml "$configuration.new"
chmod 444 "$configuration.new"
mv "$configuration.new" "$configuration"
chmod 755 "${configuration%/*}"
