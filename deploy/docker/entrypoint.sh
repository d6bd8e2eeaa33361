#!/bin/sh
# Start noetl in a container. The servers of one installation share their keys: the files of the keys folder (tokens.json, lease.key,
# admin.token) are copied into the home of this container first.
set -eu
keys=${KEYS_FOLDER:-/run/noetl-keys}
umask 077
if [ -d "$keys" ]; then
    for file in tokens.json lease.key admin.token; do
        if [ -f "$keys/$file" ]; then cat "$keys/$file" > "$NOETL_HOME/$file"; fi
    done
fi
exec noetl "$@"
