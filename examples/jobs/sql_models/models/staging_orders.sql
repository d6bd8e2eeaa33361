CREATE OR REPLACE TABLE staging_orders AS
SELECT id, customer, amount::DECIMAL(10, 2) AS amount FROM raw_orders;
