"""Listeners of triggers: NATS, objects and folders, ends of executions."""
