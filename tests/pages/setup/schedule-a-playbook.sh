playbook daily.yaml reports/daily load
playbook load.yaml orders/load load
noetl register load.yaml
servers
