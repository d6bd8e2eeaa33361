SELECT total, booked FROM (SELECT (SELECT sum(amount) FROM staging_orders) AS total, (SELECT sum(amount) FROM revenue) AS booked)
WHERE total IS DISTINCT FROM booked;
