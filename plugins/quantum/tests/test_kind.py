"""Kind `quantum` on the simulators of Qiskit."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import noetl_quantum
import pytest
from noetl_quantum.processes import SimulatorProcesses

from noetl.testing import tool_call
from noetl.tool import per_loop

BELL_2 = """
OPENQASM 2.0;
include "qelib1.inc";
qreg q[2]; creg c[2];
h q[0]; cx q[0], q[1];
measure q -> c;
"""
BELL_3 = """
// a Bell pair
OPENQASM 3.0;
include "stdgates.inc";
qubit[2] q; bit[2] c;
h q[0]; cx q[0], q[1];
c = measure q;
"""
ROTATION = """
OPENQASM 3.0;
include "stdgates.inc";
input float theta;
qubit q;
ry(theta) q;
"""


@pytest.fixture(scope="module")
def runner():
    """An event loop for all tests: Qiskit is imported once."""

    async def close():
        await per_loop("noetl-quantum", SimulatorProcesses).close()

    with asyncio.Runner() as runner:
        yield runner
        runner.run(close())


@pytest.fixture
def run(runner):
    def run(**given):
        others = {name: given.pop(name) for name in ("spec", "timeout") if name in given}
        return runner.run(noetl_quantum.run(tool_call("quantum", given, **others)))

    return run


@pytest.mark.parametrize("qasm", [BELL_2, BELL_3])
@pytest.mark.parametrize("backend", ["aer", "basic"])
def test_both_versions_of_openqasm_run_on_both_simulators(run, qasm, backend):
    outcome = run(qasm=qasm, shots=400, seed=7, backend=backend)
    assert outcome.status == "ok", outcome.error
    counts = outcome.data["counts"]
    assert set(counts) == {"00", "11"}
    assert sum(counts.values()) == outcome.data["shots"] == 400
    assert min(counts.values()) > 140
    assert outcome.helpers["quantum"]["qubits"] == 2
    assert outcome.helpers["quantum"]["backend"] == backend


def test_the_same_seed_gives_the_same_counts_and_another_one_does_not(run):
    first, second, other = (run(qasm=BELL_3, shots=1000, seed=seed).data["counts"] for seed in (3, 3, 4))
    assert first == second != other


def test_a_circuit_in_python_reads_its_input_and_is_measured_in_all_qubits(run):
    code = "circuit = QuantumCircuit(width)\nfor n in range(width):\n    circuit.x(n)\n"
    outcome = run(circuit=code, width=3, shots=10)
    assert outcome.data["counts"] == {"111": 10}


def test_parameters_are_bound(run):
    outcome = run(qasm=ROTATION, parameters={"theta": 3.141592653589793}, shots=50)
    assert outcome.status == "ok", outcome.error
    assert outcome.data["counts"] == {"1": 50}


def test_defaults_come_from_the_spec_and_the_task_wins(run):
    outcome = run(qasm=BELL_2, spec={"shots": 11, "seed": 5, "backend": "basic"})
    assert sum(outcome.data["counts"].values()) == 11
    assert outcome.helpers["quantum"] | {"depth": 0} == {"backend": "basic", "qubits": 2, "depth": 0, "seed": 5}
    assert run(qasm=BELL_2, shots=12, spec={"shots": 11}).data["shots"] == 12


def test_a_noisy_device_gives_other_outcomes_too(run):
    outcome = run(qasm=BELL_2, shots=4000, seed=1, backend="generic")
    assert {"00", "11"} < set(outcome.data["counts"])


def test_a_stabilizer_circuit_of_many_qubits(run):
    code = "circuit = QuantumCircuit(60)\ncircuit.h(0)\nfor n in range(59):\n    circuit.cx(n, n + 1)\n"
    outcome = run(circuit=code, method="stabilizer", shots=100, seed=2)
    assert set(outcome.data["counts"]) == {"0" * 60, "1" * 60}


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"qasm": "OPENQASM 2.0;\nqreg q[1]\n"}, "parse", "invalid OpenQASM 2.0"),
        ({"qasm": "OPENQASM 3.0;\nnonsense q;\n"}, "parse", "invalid OpenQASM 3.0"),
        ({"circuit": "circuit = 1"}, "python", "must set `circuit`"),
        (
            {"circuit": "x = 1\nraise ValueError('bad angle')"},
            "python",
            "ValueError: bad angle (line 2 of the circuit)",
        ),
        ({"circuit": "circuit = ("}, "python", "SyntaxError"),
        ({"qasm": ROTATION}, "schema", "theta"),
        ({"qasm": ROTATION, "parameters": {"theta": 1, "phi": 2}}, "schema", "no parameter phi; it has theta"),
        ({"qasm": ROTATION, "parameters": {"theta": "much"}}, "schema", "must be a number"),
        ({"qasm": BELL_2, "shots": 0}, "schema", "`shots` must be a whole number of at least 1"),
        ({"qasm": BELL_2, "seed": -1}, "schema", "`seed`"),
        ({"qasm": BELL_2, "backend": "ibm"}, "schema", "`backend` must be one of aer, basic, generic"),
        ({"qasm": BELL_2, "optimization_level": 4}, "schema", "`optimization_level` must be 0 to 3"),
        ({"qasm": BELL_2, "circuit": "circuit = 1"}, "schema", "either `qasm` or `circuit`"),
    ],
)
def test_a_wrong_circuit_is_an_error_outcome(run, given, kind, message):
    outcome = run(**given)
    assert outcome.status == "error"
    assert outcome.error.kind == kind
    assert message in outcome.error.message
    assert outcome.helpers.get("quantum", {}).get("qubits") is None


@pytest.mark.parametrize("backend", ["aer", "basic"])
def test_a_circuit_that_needs_too_much_memory_is_refused(run, backend):
    code = (
        "circuit = QuantumCircuit(30)\nfor n in range(30):\n    circuit.ry(0.1, n)\n    circuit.cx(n, (n + 1) % 30)\n"
    )
    outcome = run(circuit=code, backend=backend, method="statevector", shots=1, spec={"max_memory_mb": 64})
    assert outcome.status == "error"
    assert outcome.error.kind == "limit", outcome.error


def test_the_code_does_not_see_the_environment_of_the_worker(run, monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", "secret-token")
    code = "import os\ncircuit = QuantumCircuit(1)\nif 'NOETL_TOKEN' in os.environ: raise ValueError('seen')\n"
    assert run(circuit=code, shots=1).status == "ok"


def test_a_simulation_that_takes_too_long_is_stopped(run, tmp_path: Path):
    mark = tmp_path / "pid"
    code = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    run(qasm=BELL_2, shots=1)  # Qiskit is imported
    outcome = run(circuit=code, timeout=2)
    assert outcome.error.kind == "timeout"
    assert ends(int(mark.read_text()))


def test_a_cancelled_call_kills_its_process(runner, tmp_path: Path):
    mark = tmp_path / "pid"
    code = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"

    async def cancelled():
        call = asyncio.ensure_future(noetl_quantum.run(tool_call("quantum", {"circuit": code})))
        while not mark.exists() or not mark.read_text():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    runner.run(cancelled())
    assert ends(int(mark.read_text()))


def ends(process: int) -> bool:
    deadline = time.monotonic() + 30
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(process)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_run_side_by_side(runner):
    async def several():
        calls = [{"qasm": BELL_3, "shots": 10 + n, "seed": n} for n in range(6)]
        return await asyncio.gather(*(noetl_quantum.run(tool_call("quantum", call)) for call in calls))

    assert [outcome.data["shots"] for outcome in runner.run(several())] == [10, 11, 12, 13, 14, 15]
