"""Nothing is in the way of calls, and nothing is loaded, unless somebody wants to know of them."""

import logging
import subprocess
import sys

import pytest

from mrtr_server import MRTRServer, OpenTelemetry
from mrtr_server.methods.tools import Tools
from mrtr_server.telemetry.choice import choose
from mrtr_server.testing import Client

from ..support.observed import Observed, logged


def server(**settings: object) -> MRTRServer:
    app = MRTRServer("off", keys=[bytes(32)], **settings)  # type: ignore[arg-type]

    @app.tool
    def add(a: int) -> int:
        return a

    return app


def is_direct(app: MRTRServer) -> bool:
    """Return whether calls go to their method without anything between."""
    dispatcher = app._parts.stdio.args[0]
    return getattr(dispatcher._methods["tools/call"], "__func__", None) is Tools.call


@pytest.mark.parametrize("telemetry", [False, None])
def test_nothing_is_between_a_call_and_its_method(telemetry: bool | None) -> None:
    app = server(telemetry=telemetry)
    with logged(logging.WARNING):
        Client(app).call("add", a=1)
    assert is_direct(app)


def test_an_observer_is_there_from_the_first_call_on() -> None:
    app = server(telemetry=Observed().telemetry)
    assert is_direct(app)
    Client(app).call("add", a=1)
    assert not is_direct(app)


def test_a_process_that_sets_nothing_up_loads_nothing() -> None:
    code = """
import sys
from mrtr_server import MRTRServer
from mrtr_server.testing import Client
app = MRTRServer("x", keys=[bytes(32)])
@app.tool
def add(a: int) -> int:
    return a
Client(app).call("add", a=1)
print([name for name in ("opentelemetry", "prometheus_client") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_process_sets_up_is_used_without_a_setting() -> None:
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from mrtr_server import MRTRServer
from mrtr_server.testing import Client
app = MRTRServer("x", keys=[bytes(32)])
@app.tool
def add(a: int) -> int:
    return a
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)  # after the server was made, and before its first call
Client(app).call("add", a=1)
print([span.name for span in spans.get_finished_spans()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tools/call add']"


def test_the_api_without_its_sdk_counts_as_nothing_unless_it_is_asked_for() -> None:
    assert choose(OpenTelemetry(), shows_metrics=False) == (None, [])
    spans, meters = choose(telemetry=True, shows_metrics=False)
    assert spans is not None
    assert len(meters) == 1
    assert choose(telemetry=False, shows_metrics=False) == (None, [])
