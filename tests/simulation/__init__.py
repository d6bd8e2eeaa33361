"""Deterministic simulation of whole executions under a virtual clock.

The orchestrator, the pool and the runner are the production classes; only the clock, the network
between them, the event store and the tools are simulated, in one thread. A seed determines every
fault: which message is lost, duplicated or delayed; when a server or a worker crashes, before or after
which commit; which worker is silent for longer than its lease and then returns; when a clock jumps.
The same seed gives the same result.

    from tests.simulation import simulate
    result = simulate(seed=7, faults=50)
    assert result.violations == []
"""

from tests.simulation.scenarios import ScenarioResult, shrink, simulate

__all__ = ["ScenarioResult", "shrink", "simulate"]
