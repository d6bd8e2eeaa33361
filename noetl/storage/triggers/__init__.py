"""Stores of triggers and of their deliveries, one module per back end."""
