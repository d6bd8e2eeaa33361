-- One row per id: a page that is loaded again replaces its rows.
INSERT OR REPLACE INTO orders
SELECT (o ->> 'id')::INTEGER, o ->> 'customer', (o ->> 'amount')::INTEGER
FROM (SELECT unnest(CAST($orders AS JSON[])) AS o);
