servers
export NOETL_SERVER_URL=http://127.0.0.1:$NOETL_SERVER_PORT NOETL_TOKEN=$(cat "$NOETL_HOME/admin.token")
playbook load.yaml shop/load start; noetl execute load.yaml --wait
