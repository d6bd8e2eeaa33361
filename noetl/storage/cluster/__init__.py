"""Cluster membership of servers that share a store."""
