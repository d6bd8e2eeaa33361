"""Catalogs of playbooks, one module per back end."""
