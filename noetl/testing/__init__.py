"""Shipped to authors and developers: simulation, manual clock, contract suites."""
