CREATE OR REPLACE TABLE revenue AS
SELECT c.id, c.name, coalesce(sum(o.amount), 0) AS amount
FROM customers c LEFT JOIN (VALUES (1, 10), (1, 5), (2, 7)) AS o(customer, amount) ON o.customer = c.id
GROUP BY c.id, c.name;
