"""What Alembic runs to reach the database: on the connection that it was given, within the transaction there."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table="mrtr_schema")
context.run_migrations()
