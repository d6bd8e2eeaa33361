"""Evaluation of server-side templates: compiled net, visible names, evaluation context."""
