"""Streamable HTTP over ASGI."""
