"""Commands that work on playbook texts and the catalog."""
