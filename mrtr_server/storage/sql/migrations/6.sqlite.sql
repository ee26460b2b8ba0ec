-- PostgreSQL counts what is stored in more rows from here on. A file has one writer at a time, so nothing changes in it.

UPDATE mrtr_schema SET compatible_from = '5';
