"""Where freed slots go: most stay with the executions that freed them, and the queue never starves."""

import pytest

from noetl.control.workers import _share
from noetl.model.work import Claim


@pytest.mark.parametrize(("freed", "for_the_queue"), [(1, 1), (2, 1), (8, 1), (9, 2), (256, 32)])
def test_the_queue_gets_a_share_of_freed_slots_and_never_nothing(freed, for_the_queue):
    shared = _share(Claim("w", freed, "gpu", ("big",)))
    assert shared == Claim("w", for_the_queue, "gpu", ("big",))
