"""Lineage of data: OpenLineage events of executions, and the graph of datasets and tasks."""
