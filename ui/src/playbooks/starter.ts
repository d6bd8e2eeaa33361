/** The source of a new playbook: small, complete and runnable. */
export const STARTER = `apiVersion: noetl.io/v2
kind: Playbook

metadata:
  name: hello
  path: examples/hello
  description: Greets every name in the list, in parallel.

workload:
  greeting: Hello   # printed before each name
  names: [Ada, Grace, Katherine]

workflow:
  - step: start
    loop:
      in: "{{ workload.names }}"
      iterator: name
      spec: { mode: parallel, max_in_flight: 3 }
    tool:
      - name: greet
        kind: python
        input:
          line: "{{ workload.greeting }}, {{ iter.name }}!"
        code: |
          result = {"line": line, "letters": len(line)}
    next:
      arcs:
        - step: end

  - step: end
    tool:
      - name: sum_up
        kind: python
        input:
          greetings: "{{ start.results }}"
        code: |
          result = {"said": [each["line"] for each in greetings]}
`;
