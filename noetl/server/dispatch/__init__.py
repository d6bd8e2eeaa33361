"""Dispatch of runs to workers: long polls, leases, queueing."""
