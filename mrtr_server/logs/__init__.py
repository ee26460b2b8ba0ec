"""What goes to the log: plain text, short tracebacks, and refusals told once."""
