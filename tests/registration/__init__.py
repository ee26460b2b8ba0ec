"""A decorated function becomes a record."""
