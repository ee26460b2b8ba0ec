"""Signed links back from a browser."""
