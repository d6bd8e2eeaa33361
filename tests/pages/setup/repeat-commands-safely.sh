servers
cat > waits.yaml <<YAML
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits}
workflow:
  - step: start
    tool: {name: pause, kind: wait, for: 10m}
YAML
export NOETL_SERVER_URL=http://127.0.0.1:$NOETL_SERVER_PORT NOETL_TOKEN=$(cat $NOETL_HOME/admin.token)
noetl execute waits.yaml --no-wait
