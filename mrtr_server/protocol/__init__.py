"""Neutral messages, and the dialects that carry them."""
