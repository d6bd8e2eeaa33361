"""Text to diagnostics and a Playbook."""
