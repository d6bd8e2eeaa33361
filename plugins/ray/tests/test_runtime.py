"""The runtime on a real Ray cluster of several nodes (raylets as processes of this machine)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from noetl_ray.runtime import RayRuntime, connect
from ray.cluster_utils import Cluster

from noetl.testing import RuntimeConformance

START_ATTEMPTS = 5  # Ray gives a node 30 s to start, which a busy machine may exceed
pytestmark = pytest.mark.timeout(600)  # the attempts are part of the first test


@pytest.fixture(scope="class")
def cluster() -> Iterator[Cluster]:
    for attempt in range(1, START_ATTEMPTS + 1):
        found = Cluster()
        try:
            add_node(found, num_cpus=2, include_dashboard=False)
            break
        except Exception:
            found.shutdown()
            if attempt == START_ATTEMPTS:
                raise
    yield found
    ray.shutdown()
    found.shutdown()


def add_node(cluster: Cluster, **options: Any) -> Any:
    """A node that has started, and is known to the cluster."""
    node = cluster.add_node(wait=False, **options)
    cluster.wait_for_nodes(timeout=180)
    return node


class TestRay(RuntimeConformance):
    LOST_LABELS = ("zone=far",)

    @pytest.fixture(autouse=True)
    def _started(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.far: Any = None

    def connect(self) -> RayRuntime:
        return connect(f"ray://{self.cluster.address}")

    def lose_node(self) -> None:
        self.cluster.remove_node(self.far, allow_graceful=False)

    def test_a_lost_node_is_an_error(self, tmp_path: Any) -> None:
        self.far = add_node(self.cluster, num_cpus=1, labels={"zone": "far"})
        super().test_a_lost_node_is_an_error(tmp_path)

    def test_the_label_gpu_is_a_number_of_gpus(self) -> None:
        node = add_node(self.cluster, num_cpus=1, num_gpus=2)
        code = "import os; result = os.environ['CUDA_VISIBLE_DEVICES']"
        outcome = self.run("python", {"code": code}, labels=("gpu=2",))
        self.cluster.remove_node(node)
        assert outcome.data == "0,1"

    def test_a_resource_that_no_node_has_waits_and_can_be_cancelled(self) -> None:
        outcome = self.run("python", {"code": "result = 1"}, labels=("zone=none",), spec={"timeout": 2}, timeout=2.0)
        assert outcome.error is not None
        assert outcome.error.kind == "timeout"
