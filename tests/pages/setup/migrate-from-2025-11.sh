cat > old.yaml <<YAML
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: old}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'a': 1}"}
    next: [{step: end}]
  - step: end
    tool: {kind: noop}
YAML
