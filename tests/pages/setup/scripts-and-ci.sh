playbook report.yaml report start
mkdir playbooks build
cp report.yaml playbooks/
