"""Whole executions under a virtual clock: real server core, real workers, simulated world.

The orchestrator, the pool and the runner here are the ones that run in production; only the
clock, the wire between them, the store's disk and the tools are simulated, in one thread. A seed
decides everything: which message is lost, doubled, delayed; when a server or a worker dies, before
or after which commit; which worker sleeps through its lease and comes back; when a clock jumps.
The same seed gives the same story.

    from tests.simulation import simulate
    story = simulate(seed=7, faults=50)
    assert story.violations == []
"""

from tests.simulation.stories import Story, shrink, simulate

__all__ = ["Story", "shrink", "simulate"]
