CREATE OR REPLACE TABLE customers AS SELECT DISTINCT customer FROM staging_orders WHERE customer IS NOT NULL;
