"""Types become JSON Schema, and values are validated against it."""
