#!/bin/sh
# Install the units and create the users and settings: install.sh [ROOT]. Files of /etc/noetl that exist are kept.
# NoETL itself is expected in /opt/noetl: python3 -m venv /opt/noetl && /opt/noetl/bin/pip install noetl-engine
set -eu
root=${1:-}
here=$(dirname "$0")
install -d -m 0755 "$root/etc/systemd/system"
install -m 0644 "$here/noetl-server.service" "$here/noetl-worker@.service" "$root/etc/systemd/system/"
install -d -m 0750 "$root/etc/noetl"
if [ ! -e "$root/etc/noetl/noetl.env" ]; then
    printf '# Settings of the server: docs/reference/settings.md\n#NOETL_STORE=postgresql://noetl:password@127.0.0.1/noetl\n#NOETL_SERVER_HOSTS=noetl.example.com\n#NOETL_SERVER_TLS_CERT=/etc/noetl/tls.pem\n' > "$root/etc/noetl/noetl.env"
fi
if [ ! -e "$root/etc/noetl/worker.env" ]; then
    printf '# Settings of workers; the token: noetl token create workers --role worker\nNOETL_SERVER_URL=http://127.0.0.1:8642\n#NOETL_TOKEN=noetl_...\n' > "$root/etc/noetl/worker.env"
fi
chmod 0640 "$root/etc/noetl/noetl.env" "$root/etc/noetl/worker.env"
if [ -z "$root" ]; then
    for user in noetl noetl-worker; do
        id "$user" > /dev/null 2>&1 || useradd --system --no-create-home --home-dir "/var/lib/$user" --shell /usr/sbin/nologin "$user"
    done
    chown root:noetl /etc/noetl/noetl.env
    chown root:noetl-worker /etc/noetl/worker.env
    chmod 0751 /etc/noetl
    systemctl daemon-reload
    echo "systemctl enable --now noetl-server noetl-worker@default" >&2
fi
