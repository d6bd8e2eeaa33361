CODE="import time; time.sleep(20)" playbook daily.yaml etl/daily load
noetl register daily.yaml
