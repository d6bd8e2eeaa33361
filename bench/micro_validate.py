"""CPU time of the compiler: parsing, checking and lowering playbooks of fixed sizes.

python -m bench.micro_validate
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from noetl.core.language.compile import compile_playbook
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.templates import free_names, sandbox, template
from noetl.tools import registry as tools

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: { name: many_steps, path: bench/many_steps }
keychain:
  - { name: warehouse, kind: postgres_credential }
workload:
  base: "https://records.example.org"
  limit: 50
workflow:
- step: start
  tool: { kind: noop }
  set: { ctx.done: 0 }
  next: { arcs: [{ step: step_0 }] }
"""
STEP = """\
- step: step_{n}
  tool:
    kind: postgres
    auth: warehouse
    command: "SELECT {{{{ ctx.done }}}} + {n}"
    spec:
      policy:
        rules:
        - when: "{{{{ output.error.retryable and _attempt < {n} }}}}"
          then: {{ do: retry, delay: 1 }}
        - else: {{ then: {{ do: continue }} }}
  set: {{ ctx.done: "{{{{ output.data.n + {n} }}}}" }}
  next: {{ arcs: [{{ step: step_{next}, when: "{{{{ ctx.done > {n} }}}}" }}] }}
"""
LAST = """\
- step: step_{n}
  tool: {{ kind: noop, input: {{ all: "{{{{ ctx.done }}}}" }} }}
"""


def playbook(steps: int) -> str:
    """A chain of steps with different templates."""
    return HEAD + "".join(STEP.format(n=n, next=n + 1) for n in range(steps - 2)) + LAST.format(n=steps - 2)


def cpu(text: str, repeats: int) -> float:
    """Median CPU seconds of one compilation with empty caches."""
    specs = tools.specs()
    taken = []
    for _ in range(repeats):
        for cached in (analyze_template, template._compile_cached, sandbox._cached, free_names._uses):
            cached.cache_clear()
        began = time.process_time()
        result = compile_playbook(text, file="bench.yaml", specs=specs)
        taken.append(time.process_time() - began)
        assert result.playbook is not None, result.diagnostics
    return median(taken)


def measure() -> Iterator[tuple[str, float, str]]:
    """Samples as (name, value, unit)."""
    for steps, repeats in ((100, 9), (1_000, 3)):
        text = playbook(steps)
        yield f"validate.{steps}_steps", cpu(text, repeats) * 1000, "ms"
        yield f"validate.{steps}_steps_size", len(text) / 1024, "KB"


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:45} {value:12,.1f} {unit}")
