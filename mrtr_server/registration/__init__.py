"""From a decorated function to a record that can be served."""
