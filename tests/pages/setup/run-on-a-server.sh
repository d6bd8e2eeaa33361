playbook daily.yaml reports/daily load
CODE="import time; time.sleep(30)" playbook slow.yaml slow start load
