"""From types to JSON Schema, and from JSON back to values."""
