-- A test: rows that must not exist.
SELECT * FROM revenue WHERE amount < 0 OR name IS NULL;
