"""Triggers: what starts executions without a request from a user, and the deliveries that they receive."""
