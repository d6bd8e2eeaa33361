"""Conformance suites for sources and targets of `transfer`, public in `noetl.testing`.

A test class inherits a suite and defines the fixture `place` (and `read` for targets):

    class TestSource(SourceConformance):
        @pytest.fixture
        def place(self, server):
            return lambda rows: {"kind": "mysql", "auth": server.auth, "table": server.create(rows)}

    class TestTarget(TargetConformance):
        @pytest.fixture
        def place(self, server):
            return lambda: {"kind": "mysql", "auth": server.auth, "table": server.new_name()}

        @pytest.fixture
        def read(self, server):
            return lambda fields: server.rows(fields["table"])
"""

from noetl.testing.connectors.source_suite import SourceConformance as SourceConformance
from noetl.testing.connectors.target_suite import TargetConformance as TargetConformance
