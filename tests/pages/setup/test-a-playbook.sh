playbook report.yaml report start
