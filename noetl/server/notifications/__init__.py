"""Notifications: who is told of failures, lateness, waiting executions and broken triggers, and how."""
