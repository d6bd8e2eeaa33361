CREATE OR REPLACE TABLE revenue AS
SELECT customer, sum(amount) AS amount, count(*) AS orders FROM customers JOIN staging_orders USING (customer) GROUP BY customer;
