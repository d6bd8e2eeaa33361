#!/bin/sh
# Create the keys that all servers of one installation share: create-keys.sh FOLDER. Files that exist are kept.
#   tokens.json   digests of the tokens      admin.token, worker.token   the tokens themselves
#   lease.key     proofs of leases           secret.key                  NOETL_SECRET_KEY, encrypts stored credentials
set -eu
folder=$1
umask 077
mkdir -p "$folder"
for name in admin worker; do
    if [ ! -s "$folder/$name.token" ]; then
        NOETL_HOME=$folder noetl token create "$name" --role "$name" --quiet > "$folder/$name.token.new"
        mv "$folder/$name.token.new" "$folder/$name.token"
    fi
done
for name in lease.key secret.key; do
    [ -s "$folder/$name" ] || od -An -tx1 -N32 /dev/urandom | tr -d ' \n' > "$folder/$name"
done
