CODE="import os, time; time.sleep(0.1); marker = os.path.expanduser('~/failed-once'); n = input_data.get('n'); (n == 12 and not os.path.exists(marker)) and (open(marker, 'x'), 1 / 0); result = n"
cat > export.yaml <<YAML
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: export, path: etl/export}
workload: {slot: {index: 0}, day: none}
workflow:
  - step: start
    tool:
      - name: export
        kind: python
        input: {n: "{{ workload.slot.index }}", marker: $PWD/failed-once}
        code: |
          import os
          if n == 12 and not os.path.exists(marker):
              open(marker, "x").close()
              raise RuntimeError("not yet")
          result = n
YAML
noetl register export.yaml
playbook invoice.yaml etl/invoice start; noetl register invoice.yaml
