"""Tool kind `quantum`: runs quantum circuits on simulators."""

from __future__ import annotations

from noetl.tool import Field, Outcome, ToolCall, ToolSpec

BACKENDS = ("aer", "basic", "generic")
METHODS = ("automatic", "statevector", "density_matrix", "stabilizer", "matrix_product_state")
MEMORY_MB = 2048

SPEC = ToolSpec(
    kind="quantum",
    doc="Runs a quantum circuit. `output.data.counts` has the number of shots of each measured bit string; a circuit "
    "without measurements is measured in all qubits. The circuit runs in a process of its own, without the "
    "environment of the worker. Defaults are in `executor.spec.quantum`.",
    fields={
        "qasm": Field("string", "The circuit as OpenQASM 2 or 3."),
        "circuit": Field("code", "Python code that sets `circuit` to a qiskit `QuantumCircuit`. Every input is a "
                         "variable of the code, which is not rendered as a template.", raw=True),
        "parameters": Field("mapping", "Values of the parameters of the circuit, by name."),
        "shots": Field("integer", "Number of executions of the circuit.", default=1024, least=1),
        "seed": Field("integer", "Seed of transpiler and simulator: the same seed gives the same counts.", least=0),
        "backend": Field("string", "`aer` (Qiskit Aer), `basic` (the simulator of Qiskit), or `generic` (Aer with the "
                         "noise of a generic device).", choices=BACKENDS, default="aer"),
        "method": Field("string", "Method of Aer.", choices=METHODS, default="automatic"),
        "optimization_level": Field("integer", "Optimization of the transpiler, 0 to 3.", default=1, least=0,
                                    most=3),
    },
    requires=(("qasm", "circuit"),),
    open_fields=True,
    spec_keys={
        "shots": "Default of `shots`.",
        "seed": "Default of `seed`.",
        "backend": "Default of `backend`.",
        "method": "Default of `method`.",
        "optimization_level": "Default of `optimization_level`.",
        "max_memory_mb": f"Most memory of the simulated state ({MEMORY_MB}).",
        "timeout": "`total`: seconds after which the simulation is stopped.",
    },
    spec_fields={
        "shots": Field("integer", least=1),
        "seed": Field("integer", least=0),
        "backend": Field("string", choices=BACKENDS),
        "method": Field("string", choices=METHODS),
        "optimization_level": Field("integer", least=0, most=3),
        "max_memory_mb": Field("integer", least=1),
    },
    helpers={"quantum": {"backend": None, "qubits": None, "depth": None, "seed": None}},
    example="kind: quantum\nqasm: |\n  OPENQASM 3.0;\n  include \"stdgates.inc\";\n  qubit[2] q; bit[2] c;\n"
    "  h q[0]; cx q[0], q[1];\n  c = measure q;\nshots: 1000\nseed: 7\n",
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Run the circuit."""
    from noetl_quantum import task

    return await task.run(call)
