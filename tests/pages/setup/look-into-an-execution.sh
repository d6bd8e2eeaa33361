CODE="import time; time.sleep(60)" playbook slow.yaml slow wait
cat > failing.yaml <<YAML
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: failing}
workflow:
  - step: load
    tool: {name: load, kind: python, code: "result = 1"}
    next: {arcs: [{step: store}]}
  - step: store
    tool: {name: store, kind: shell, command: "echo storing; test -e fixed"}
YAML
interrupted() {
    CODE="import time; time.sleep(3)" playbook short.yaml short wait
    begin short
    kill -9 -- -$(cat short.pid)
}
! noetl run failing.yaml
