"""uvicorn's HTTP protocol with more and more of `mrtr_server.uvicorn_http`, to see what each part gains."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mrtr_server.transport import connection
from mrtr_server.uvicorn_http import one_write
from mrtr_server.uvicorn_http.whole_responses import WholeResponses


def __getattr__(name: str) -> Any:
    """Return a protocol class, for `uvicorn --http protocols:NAME`; the process serves with one alone."""
    if name == "Messages":  # uvicorn's own, by messages alone
        connection.find_shortcuts = lambda request: None  # type: ignore[attr-defined, assignment]
        return HttpToolsProtocol
    one_write.repeated_heads = None
    joined = one_write.one_write(HttpToolsProtocol)
    if name == "Joined":  # and head and body in one write
        return joined
    if name == "Whole":  # and responses taken as a whole, with less made for each request
        return type("Whole", (WholeResponses, joined), {})
    raise AttributeError(name)
