"""What an operator sees of a server: a span, a metric and a log line of each call."""
