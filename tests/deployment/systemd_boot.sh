#!/bin/bash
# Boot systemd in namespaces of its own and run the units in it: systemd_boot.sh UNITS PYTHON PACKAGES PORT FOLDER
# Changes of /etc, /opt and /var go to a file system in memory; no unit of the machine is started. Prints one line per result.
set -euo pipefail
units=$1 python=$2 packages=$3 port=$4 folder=$5
if [ "${6:-}" != inside ]; then
    exec setsid --wait unshare --pid --fork --kill-child --mount --cgroup --propagation private "$0" "$@" inside
fi
mount -t proc proc /proc
mount -t tmpfs tmpfs "$folder"
for name in etc opt var; do
    mkdir -p "$folder/$name.upper" "$folder/$name.work"
    mount -t overlay overlay -o "lowerdir=/$name,upperdir=$folder/$name.upper,workdir=$folder/$name.work" "/$name"
done
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
rm -rf /etc/systemd/system/*
for wanted in /usr/lib/systemd/system/*.wants /usr/lib/systemd/system-generators; do mount -t tmpfs tmpfs "$wanted"; done

# The installation in /opt/noetl, with the packages of the tests.
"$python" -m venv --without-pip /opt/noetl
printf '%s\n' "$packages" | tr ':' '\n' > "$(echo /opt/noetl/lib/python3.*/site-packages)/noetl.pth"
printf '#!/bin/sh\nexec /opt/noetl/bin/python -m noetl "$@"\n' > /opt/noetl/bin/noetl
chmod 755 /opt/noetl/bin/noetl

ready() {
    for _ in $(seq 600); do
        /opt/noetl/bin/python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/readyz')" 2> /dev/null && return
        sleep 0.1
    done
    journalctl --no-pager -u noetl-server | tail -20
    return 1
}

check() {
    for _ in $(seq 300); do
        systemctl is-system-running 2> /dev/null | grep -qE 'running|degraded' && break
        sleep 0.1
    done
    sh "$units/install.sh" 2> /dev/null
    echo "NOETL_SERVER_PORT=$port" >> /etc/noetl/noetl.env
    systemctl enable -q --now noetl-server
    ready || return 1
    echo "server: ready, user $(ps -o user= -p "$(systemctl show -P MainPID noetl-server)")"
    noetl() { runuser -u noetl -- env NOETL_HOME=/var/lib/noetl "NOETL_SERVER_URL=http://127.0.0.1:$port" /opt/noetl/bin/noetl "$@"; }
    token=$(noetl token create workers --role worker 2> /dev/null)
    printf 'NOETL_SERVER_URL=http://127.0.0.1:%s\nNOETL_TOKEN=%s\n' "$port" "$token" > /etc/noetl/worker.env
    systemctl enable -q --now noetl-worker@default
    printf 'apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: unit}\nworkflow:\n- step: start\n  tool: {kind: shell, cmd: "id -un; touch /etc/changed || true"}\n' > /var/lib/noetl/unit.yaml
    chown noetl /var/lib/noetl/unit.yaml
    admin=$(cat /var/lib/noetl/admin.token)
    echo "task: $(NOETL_TOKEN=$admin noetl execute /var/lib/noetl/unit.yaml --server "http://127.0.0.1:$port" 2> /dev/null | tr -d '\n')"
    before=$(systemctl show -P MainPID noetl-server)
    [ "$before" != 0 ] || return 1  # kill -9 0 would kill the whole process group
    kill -9 "$before"
    for _ in $(seq 300); do
        now=$(systemctl show -P MainPID noetl-server)
        [ "$now" != 0 ] && [ "$now" != "$before" ] && break
        sleep 0.1
    done
    ready && echo "restart: ready"
    systemctl stop noetl-worker@default noetl-server
    for unit in noetl-worker@default noetl-server; do
        echo "stop: $unit $(systemctl show -P ActiveState "$unit") $(systemctl show -P Result "$unit")"
    done
    stat -c '%U %a %n' /var/lib/noetl /var/lib/noetl-worker
}
( check > "$folder/result" 2>&1 || echo "failed" >> "$folder/result"; cat "$folder/result" >&3; kill -s RTMIN+4 1; sleep 5; kill -9 1 ) 3>&1 &
export container=noetl-test
exec /lib/systemd/systemd --system --unit=basic.target --log-target=null --show-status=no > /dev/null 2>&1
