"""Tool kind `playbook`."""
