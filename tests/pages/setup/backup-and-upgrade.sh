playbook hello.yaml hello start
noetl run hello.yaml
