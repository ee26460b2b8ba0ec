"""Neutral messages, and the wire forms that carry them."""
