"""Recovery, membership, retention, timers and background tasks of a server."""
