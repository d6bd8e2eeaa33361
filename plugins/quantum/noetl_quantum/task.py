"""One call: send the circuit to a simulator process and wait for the counts."""

from __future__ import annotations

import asyncio
from typing import Any

from noetl.tool import Outcome, ToolCall, error, ok, per_loop
from noetl_quantum import BACKENDS, MEMORY_MB, METHODS, SPEC
from noetl_quantum.processes import SimulatorProcesses

_OPTIONS = ("shots", "seed", "backend", "method", "optimization_level")
_DEFAULTS: dict[str, Any] = {
    "shots": 1024,
    "seed": None,
    "backend": "aer",
    "method": "automatic",
    "optimization_level": 1,
}
_CHOICES = {"backend": BACKENDS, "method": METHODS}
_SMALLEST = {"shots": 1, "seed": 0, "optimization_level": 0}


async def run(call: ToolCall) -> Outcome:
    """Run the circuit in a process of its own."""
    problem, request = _request(call)
    if problem is not None:
        return error("schema", problem)
    processes = per_loop("noetl-quantum", SimulatorProcesses)
    try:
        async with asyncio.timeout(call.timeout.total):
            answer = await processes.run(request)
    except TimeoutError:
        return error("timeout", f"quantum: the circuit was not executed within {call.timeout.total:g} s (spec.timeout)")
    except OSError as failure:
        return error("unknown", f"quantum: the simulator process cannot be started: {failure}")
    if "error" in answer:
        return error(answer["error"]["kind"], f"quantum: {answer['error']['message']}")
    return ok(answer["data"], quantum=answer["quantum"])


def _request(call: ToolCall) -> tuple[str | None, dict[str, Any]]:
    """The request for the simulator, or what is wrong with the input."""
    given = call.input
    options: dict[str, Any] = {}
    for name in _OPTIONS:
        value = next((each[name] for each in (given, call.spec) if each.get(name) is not None), _DEFAULTS[name])
        if name in _CHOICES and value not in _CHOICES[name]:
            return f"quantum: `{name}` must be one of {', '.join(_CHOICES[name])}, not {value!r}", {}
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name in _SMALLEST and value is not None and (not whole or value < _SMALLEST[name]):
            return f"quantum: `{name}` must be a whole number of at least {_SMALLEST[name]}, not {value!r}", {}
        options[name] = value
    level = options["optimization_level"]
    if level > 3:
        return f"quantum: `optimization_level` must be 0 to 3, not {level}", {}
    sources = [name for name in ("qasm", "circuit") if given.get(name)]
    if len(sources) != 1:
        return "quantum requires either `qasm` or `circuit`", {}
    parameters = given.get("parameters") or {}
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"quantum: the parameter {name!r} must be a number, not {value!r}", {}
    return None, {
        **options,
        "source": sources[0],
        "text": given[sources[0]],
        "parameters": parameters,
        "input": {name: value for name, value in given.items() if name not in SPEC.fields},
        "max_memory_mb": int(float(call.spec.get("max_memory_mb") or MEMORY_MB)),
    }
