"""examples/chart.py: a page that draws what the model reads."""

import pytest
from pydantic_core import from_json

from examples import chart
from mrtr_server.testing import Client

from .conftest import Start
from .pasting import needs_curl, replies


@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
def test_the_page_has_no_network_and_draws_what_the_model_reads(era: str) -> None:
    client = Client(chart.app, ui=True, era=era)
    page = client.page("visitors")
    assert page.calls == ["visitors"]
    assert not any(page.csp.values())
    drawn = client.as_app("visitors").call("visitors", museum="ships", days=2).structured
    assert drawn["days"] == [{"day": "yesterday", "visitors": 480}, {"day": "today", "visitors": 520}]
    assert from_json(client.call("visitors", museum="ships", days=2).text) == drawn


@needs_curl
def test_the_lines_of_the_docstring_work(start: Start) -> None:
    (counted,) = replies(chart, start("chart").url)
    assert [day["visitors"] for day in counted["result"]["structuredContent"]["days"]] == [210, 480, 520]
