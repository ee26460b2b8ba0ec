"""A server without keys and without a store, which works in one process only."""

from mrtr_server import MRTRServer

app = MRTRServer("several", lame_duck=0.1)


@app.tool
def hello() -> str:
    """Greet."""
    return "hello"
