SELECT id FROM staging_orders WHERE customer IS NULL;
