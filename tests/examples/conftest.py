"""Each example is run as its readers run it: by uvicorn, in a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from ..support.serving import in_process
from ..support.wire import Wire

Start = Callable[..., Wire]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start an example, once for all tests: `wire = start("weather")`. Keywords are environment variables."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:

        @cache
        def start_once(example: str, **environment: str) -> Wire:
            log = logs / f"{example}.log"
            server = stack.enter_context(in_process(f"examples.{example}:app", log=log, environment=environment))
            assert server.port, server.text
            wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
            stack.callback(wire.close)
            return wire

        yield start_once
