"""The same in SQLite and PostgreSQL, in plain SQL."""
