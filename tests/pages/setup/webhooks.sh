servers
export NOETL_SERVER_URL=http://127.0.0.1:$NOETL_SERVER_PORT
for path in billing/paid ci/deploy erp/order shop/orders shop/message news/entry; do playbook orders.yaml $path start; noetl register orders.yaml; done
