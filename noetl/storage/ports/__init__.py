"""Ports: the protocols that storage back ends and worker links implement, one module per port.

The conformance suites in `tests.conformance` test an implementation.
"""
