"""Notifications: messages about failures, lateness, waiting executions and broken triggers."""
