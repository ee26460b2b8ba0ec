"""The log: plain text, short tracebacks, and refusals that are not repeated."""
