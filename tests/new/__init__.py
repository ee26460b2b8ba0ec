"""A project to begin with."""
