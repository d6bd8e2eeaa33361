"""Stores of schedules and webhooks, one module per back end."""
