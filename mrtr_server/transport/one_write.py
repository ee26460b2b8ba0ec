"""The former place of `mrtr_server.uvicorn_http.one_write`, for `uvicorn --http`; until 0.3."""

from ..uvicorn_http.one_write import OneWriteProtocol as OneWriteProtocol
