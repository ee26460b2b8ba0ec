"""The transports: Streamable HTTP over ASGI, and standard input and output."""
