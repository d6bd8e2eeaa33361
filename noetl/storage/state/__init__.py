"""The state that executions of a playbook share, in each back end."""
