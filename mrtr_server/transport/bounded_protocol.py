"""The former place of `mrtr_server.uvicorn_http.bounded_protocol`, for `uvicorn --http`; until 0.3."""

from ..uvicorn_http.bounded_protocol import BoundedProtocol as BoundedProtocol
