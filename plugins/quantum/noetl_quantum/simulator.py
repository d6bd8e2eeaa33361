"""`python -m noetl_quantum.simulator SOCKET`: imports Qiskit, then forks a process for each circuit.

It ends when its standard input is closed, so it does not outlive the worker.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any

MAX_REQUEST = 1 << 26


class Refused(Exception):
    """A circuit that cannot be run: the kind of the error and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def simulate(request: dict[str, Any]) -> dict[str, Any]:
    """Counts of a circuit."""
    circuit = bound(built(request), request["parameters"])
    if circuit.num_clbits == 0:
        circuit = circuit.measure_all(inplace=False)
    backend = backend_for(request, circuit.num_qubits)
    from qiskit import transpile

    seed = request["seed"]
    ready = transpile(circuit, backend, optimization_level=request["optimization_level"], seed_transpiler=seed)
    options = {} if seed is None else {"seed_simulator": seed}
    result = backend.run(ready, shots=request["shots"], **options).result()
    if not result.success:
        status = str(result.status)
        kind = "limit" if "memory" in status.lower() else "unknown"
        raise Refused(kind, f"the simulation failed: {status}")
    counts = {key: int(count) for key, count in sorted(result.get_counts().items())}
    data = {"counts": counts, "shots": request["shots"]}
    about = {"backend": request["backend"], "qubits": circuit.num_qubits, "depth": ready.depth(), "seed": seed}
    return {"data": data, "quantum": about}


def built(request: dict[str, Any]) -> Any:
    """The circuit of the request."""
    from qiskit import QuantumCircuit

    if request["source"] == "qasm":
        return parsed(request["text"])
    import math

    names = {
        "QuantumCircuit": QuantumCircuit,
        "qiskit": import_module("qiskit"),
        "np": import_module("numpy"),
        "math": math,
        "pi": math.pi,
        **request["input"],
        "input": request["input"],
    }
    try:
        exec(compile(request["text"], "<circuit>", "exec"), names)
    except Exception as failure:  # noqa: BLE001 - whatever the code raises is its error
        lines = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == "<circuit>"]
        line = getattr(failure, "lineno", None) if isinstance(failure, SyntaxError) else (lines or [None])[-1]
        where = f" (line {line} of the circuit)" if line else ""
        raise Refused("python", f"{type(failure).__name__}: {failure}{where}") from None
    circuit = names.get("circuit")
    if not isinstance(circuit, QuantumCircuit):
        raise Refused("python", "the code must set `circuit` to a QuantumCircuit")
    return circuit


def parsed(text: str) -> Any:
    """A circuit from OpenQASM; without a version line it is OpenQASM 2."""
    from qiskit import qasm2, qasm3

    words = [line.split("//")[0].split() for line in text.splitlines()]
    first = next((line for line in words if line), [])
    version = first[1].rstrip(";") if len(first) > 1 and first[0] == "OPENQASM" else "2.0"
    try:
        if version.startswith("3"):
            return qasm3.loads(text)
        return qasm2.loads(text, custom_instructions=qasm2.LEGACY_CUSTOM_INSTRUCTIONS)
    except Exception as failure:  # noqa: BLE001 - the parsers raise several types
        raise Refused("parse", f"invalid OpenQASM {version}: {failure}") from None


def bound(circuit: Any, parameters: dict[str, Any]) -> Any:
    """The circuit with values for all its parameters."""
    known = {each.name for each in circuit.parameters}
    unknown, missing = sorted(parameters.keys() - known), sorted(known - parameters.keys())
    if unknown:
        have = f"; it has {', '.join(sorted(known))}" if known else ""
        raise Refused("schema", f"the circuit has no parameter {', '.join(unknown)}{have}")
    if missing:
        raise Refused("schema", f"the parameters {', '.join(missing)} of the circuit have no value; add `parameters`")
    return circuit.assign_parameters(parameters) if parameters else circuit


def backend_for(request: dict[str, Any], qubits: int) -> Any:
    """The simulator that the request names."""
    if request["backend"] == "basic":
        from qiskit.providers.basic_provider import BasicSimulator

        if 16 << qubits > request["max_memory_mb"] << 20:
            raise Refused("limit", f"{qubits} qubits need more than {request['max_memory_mb']} MB (spec.max_memory_mb)")
        return BasicSimulator()
    from qiskit_aer import AerSimulator

    options = {"max_memory_mb": request["max_memory_mb"]}
    if request["method"] != "automatic":
        options["method"] = request["method"]
    if request["backend"] == "generic":
        from qiskit.providers.fake_provider import GenericBackendV2

        return AerSimulator.from_backend(GenericBackendV2(max(2, qubits), seed=0), **options)
    return AerSimulator(**options)


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; errors are answers too."""
    try:
        return simulate(request)
    except Refused as problem:
        return {"error": {"kind": problem.kind, "message": str(problem)}}
    except MemoryError:
        return {"error": {"kind": "limit", "message": "not enough memory"}}
    except Exception as failure:  # noqa: BLE001 - reported as the outcome of the task
        message = f"{type(failure).__name__}: {failure}"
        kind = "limit" if "memory" in message.lower() or "too large" in message else "schema"
        return {"error": {"kind": kind, "message": message}}


def serve(address: str) -> None:
    """Answer requests until standard input is closed."""
    for module in ("qiskit", "qiskit.qasm2", "qiskit.qasm3", "qiskit_aer", "qiskit_qasm3_import"):
        import_module(module)  # once for all children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in readable:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """Answer one request in a process of its own."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.close(0)
        with connection, connection.makefile("rwb") as stream:
            stream.write(b"%d\n" % os.getpid())
            stream.flush()
            request = json.loads(stream.readline(MAX_REQUEST))
            sys.stdout = sys.stderr
            stream.write(json.dumps(answered(request)).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
