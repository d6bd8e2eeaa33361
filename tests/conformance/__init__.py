"""Conformance suites for implementations of the storage and transport ports."""
