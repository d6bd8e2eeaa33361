# needs: nats
servers
for path in orders/import files/load reports/publish mail/thanks; do playbook one.yaml $path start; noetl register one.yaml --server http://127.0.0.1:$NOETL_SERVER_PORT; done
noetl credential set s3 --type s3 --data '{"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://127.0.0.1:9"}' --server http://127.0.0.1:$NOETL_SERVER_PORT
