cat > load.yaml <<YAML
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: load}
workload: {threshold: 0.8, target: production}
workflow:
  - step: extract
    tool: {name: read, kind: python, code: "result = list(range(100))"}
    next: {arcs: [{step: transform}]}
  - step: transform
    tool: {name: double, kind: python, input: {rows: "{{ extract }}"}, code: "result = [row * 2 for row in rows]"}
    next: {arcs: [{step: load}]}
  - step: load
    loop: {in: "{{ transform.data }}", iterator: row}
    tool:
      - name: write
        kind: python
        input: {row: "{{ iter.row }}", marker: $PWD/fixed}
        code: |
          import os
          if row == 196 and not os.path.exists(marker):
              raise ValueError("the row does not fit")
          result = row
    next: {arcs: [{step: report}]}
  - step: report
    tool: {name: count, kind: python, input: {rows: "{{ load.results }}"}, code: "result = len(rows)"}
YAML
noetl register load.yaml
! noetl run load
sed 's/row \* 2/2 * row/' load.yaml > new.yaml && mv new.yaml load.yaml
touch fixed
