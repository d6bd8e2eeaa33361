CREATE OR REPLACE TABLE customers AS
SELECT * FROM (VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Edsger')) AS rows(id, name);
