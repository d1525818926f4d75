#!/bin/sh
# Creates what is missing in the volume of credentials: a password for each NATS user and the console's token, readable by
# that service's user id only, and nats.conf with all passwords for the server. Existing passwords stay, so a second `docker compose up` changes
# nothing. `docker compose down --volumes` removes them.
set -eu
folder=/run/berth/credentials
umask 077

secret() {  # NAME ID: creates the file once; prints nothing
  [ -s "$folder/$1" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "$folder/$1"
  chmod 400 "$folder/$1"
  chown "$2:$2" "$folder/$1"
}

password() {  # USER ID: the same for a user of NATS
  secret "$1" "$2"
  printf '%s_PASSWORD: "%s"\n' "$1" "$(cat "$folder/$1")" >> "$folder/nats.conf.new"
}

rm -f "$folder/nats.conf.new"
password apply 65501
password watcher 65502
password scorer 65503
password binder 65504
password collector 65505
password people 65506
password shadow 65507
password facts 65508
secret console 65506  # the token of the page, which people print: it ends its line
if [ -n "$(tail -c 1 "$folder/console")" ]; then
  chmod 600 "$folder/console"
  echo >> "$folder/console"
  chmod 400 "$folder/console"
fi
chmod 400 "$folder/nats.conf.new"
chown 65500:65500 "$folder/nats.conf.new"
mv "$folder/nats.conf.new" "$folder/nats.conf"

# The servers run without capabilities, so the folders that they write to must belong to them.
chmod 755 "$folder"
chown 65500:65500 /data
chown 65534:65534 /prometheus
chown 65506:65506 /recordings
chmod 700 /recordings
