#!/bin/sh
# Build the image and use it: a server and a worker with read-only file systems run a playbook, and stop on SIGTERM.
#   sh deploy/docker/check-image.sh            with docker or podman
#   BASE=my-registry/python:3.12 BUILD_OPTIONS="..." RUN_OPTIONS="..." sh deploy/docker/check-image.sh
set -eu
cd "$(dirname "$0")/../.."
engine=${ENGINE:-$(command -v docker || command -v podman)}
base=${BASE:+--build-arg BASE=$BASE}
port=${PORT:-18642}
name=noetl-check-$$
url=http://127.0.0.1:$port

# shellcheck disable=SC2086  # the options are lists
"$engine" build $base ${BUILD_OPTIONS:-} -f deploy/docker/Dockerfile -t "$name" .
remove() {
    set +e
    for each in server worker; do "$engine" rm -f "$name-$each"; "$engine" volume rm "$name-$each"; done
    "$engine" rmi "$name"
} >/dev/null 2>&1
trap remove EXIT

start() {  # NAME OPTIONS... -- ARGUMENTS...
    container=$1; shift
    options=
    while [ "$1" != -- ]; do options="$options $1"; shift; done
    shift
    # shellcheck disable=SC2086
    "$engine" run -d --name "$container" --network host --read-only --tmpfs /tmp ${RUN_OPTIONS:-} $options "$name" "$@" >/dev/null
}

within() {  # SECONDS COMMAND...
    left=$1; shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "failed: $*" >&2; "$@"; exit 1; }
        sleep 1
    done
}

start "$name-server" -v "$name-server:/var/lib/noetl" -e NOETL_SERVER_HOST=127.0.0.1 -e "NOETL_SERVER_PORT=$port" -e "NOETL_SERVER_URL=$url" -- server start
within 30 "$engine" exec "$name-server" noetl server status
token=$("$engine" exec "$name-server" cat /var/lib/noetl/admin.token)
start "$name-worker" -v "$name-worker:/var/lib/noetl" -e "NOETL_SERVER_URL=$url" -e "NOETL_TOKEN=$token" -- worker start

[ "$("$engine" exec "$name-server" id -u)" = 10001 ] || { echo "the server runs as root" >&2; exit 1; }
if "$engine" exec "$name-server" sh -c ': > /opt/noetl/x' 2>/dev/null; then echo "the file system is writable" >&2; exit 1; fi
"$engine" exec -i -e "NOETL_TOKEN=$token" "$name-server" sh -c 'cat > /tmp/hello.yaml && noetl register /tmp/hello.yaml && noetl execute hello' <<'YAML'
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workflow:
  - step: start
    tool: {kind: python, code: "result = 'Hello from a container'"}
YAML
"$engine" stop -t 20 "$name-worker" "$name-server" >/dev/null
for each in server worker; do
    code=$("$engine" inspect -f '{{.State.ExitCode}}' "$name-$each")
    [ "$code" = 0 ] || { echo "the $each ended with $code" >&2; exit 1; }
done
echo "the image works: $("$engine" image inspect -f '{{.Size}}' "$name") bytes"
