"""Static analysis of control flow and data flow in a playbook."""
