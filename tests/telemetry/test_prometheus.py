"""`/metrics` in the form of Prometheus: for a scraper of the same network, and for no page of another site."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mrtr_server import Context, Limits, Metrics, MRTRServer, ServerInfo, SetupError, __version__
from mrtr_server.storage import health
from mrtr_server.telemetry.names import METRICS
from mrtr_server.telemetry.prometheus import prometheus_name
from mrtr_server.testing import Client

from ..conftest import Serve
from ..support.models import Login
from ..support.observed import Observed


def server(name: str, **settings: object) -> MRTRServer:
    app = MRTRServer("scraped", keys=[bytes(32)], **{"metrics": Metrics("/metrics"), **settings})  # type: ignore[arg-type]

    @app.tool(name=name)
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Login)).name

    return app


def samples(text: str) -> dict[tuple[str, str, str], float]:
    """Return the samples by their names, with the tool and the bucket."""
    return {
        (sample.name, sample.labels.get("gen_ai_tool_name", ""), sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class TestThePage:
    def test_a_scrape_finds_what_happened(self, serve: Serve) -> None:
        app = server("found")
        wire = serve(app)
        Client(wire.url).call("found", answers={"login": {"name": "Ann"}})
        reply = wire.send(None, method="GET", path="/metrics")
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (200, "text/plain")
        found = samples(reply.responses[-1].body.decode())
        assert found["mcp_server_operation_duration_seconds_count", "found", ""] == 2
        assert found["mcp_server_operation_duration_seconds_bucket", "found", "+Inf"] == 2
        assert 0 < found["mcp_server_operation_duration_seconds_sum", "found", ""] < 60
        assert found["mrtr_server_flows_total", "found", ""] == 1
        assert found["mrtr_server_state_size_bytes_count", "found", ""] == 1
        assert found["mrtr_server_requests_in_flight", "", ""] == 0
        assert ("process_resident_memory_bytes", "", "") in found, "what prometheus_client shows by itself"

    def test_a_scrape_shows_each_limit_and_how_much_of_it_is_used(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health, "INTERVAL", 0.0)  # the first use of the store has looked at it already
        app = server("used", limits=Limits(stored_states=50, listeners=7, tasks=3))
        app.tool(name="work", task="required")(lambda: "done")
        wire = serve(app)
        Client(wire.url, tasks=True).call("work")
        text = wire.send(None, method="GET", path="/metrics").responses[-1].body.decode()
        found = {
            (sample.name, sample.labels["mrtr_limit"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in ("mrtr_server_used", "mrtr_server_limit")
        }
        limits = {limit: value for (name, limit), value in found.items() if name == "mrtr_server_limit"}
        assert {(name, limit) for name in ("mrtr_server_used", "mrtr_server_limit") for limit in limits} == set(found)
        assert {"held_streams", "held_bytes", "task_waits", "stored_bytes"} < limits.keys()
        assert limits["stored_states"] % 50 == 0, "of all servers of this process"
        assert found["mrtr_server_used", "stored_tasks"] >= 1
        assert found["mrtr_server_used", "tasks"] == 0

    def test_a_scrape_finds_tasks_that_no_worker_takes(self, serve: Serve, tmp_path: Path) -> None:
        app = server("asking", store=f"sqlite:///{tmp_path}/store.db", run_tasks=False)
        app.tool(name="dead", task="required")(lambda: "done")
        wire = serve(app)
        Client(wire.url, tasks=True).request("tools/call", {"name": "dead", "arguments": {}})
        time.sleep(0.1)  # so that there is an age
        found = samples(wire.send(None, method="GET", path="/metrics").responses[-1].body.decode())
        assert found["mrtr_server_tasks_waiting", "dead", ""] == 1
        assert 0 < found["mrtr_server_tasks_oldest_seconds", "dead", ""] < 60

    def test_a_scrape_says_which_release_this_is(self, serve: Serve) -> None:
        text = (
            serve(server("built", info=ServerInfo(version="7.1")))
            .send(None, method="GET", path="/metrics")
            .responses[-1]
            .body
        )
        assert f'mrtr_server_info{{mrtr_server_version="{__version__}",service_version="7.1"}} 1.0' in text.decode()

    def test_each_metric_is_there(self, serve: Serve) -> None:
        text = serve(server("each")).send(None, method="GET", path="/metrics").responses[-1].body.decode()
        named = {family.name for family in text_string_to_metric_families(text)}
        assert {prometheus_name(metric) for metric in METRICS} <= named

    def test_metrics_go_to_opentelemetry_as_well_where_that_is_set_up(self, serve: Serve) -> None:
        observed = Observed()
        wire = serve(server("both", telemetry=observed.telemetry))
        Client(wire.url).flow("both").start()
        found = samples(wire.send(None, method="GET", path="/metrics").responses[-1].body.decode())
        assert found["mcp_server_operation_duration_seconds_count", "both", ""] == 1
        assert observed.value("mcp.server.operation.duration", tool="both") == 1

    @pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7:80", "[::1]:8000", "localhost", "tools:80", "my-tools"])
    def test_a_host_of_the_same_network_is_served(self, serve: Serve, host: str) -> None:
        assert serve(server("hosts")).send(None, {"Host": host}, method="GET", path="/metrics").status == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "a.b", "127.0.0.1.evil.example", "x:y:z"])
    def test_any_other_is_refused(self, serve: Serve, host: str, caplog: pytest.LogCaptureFixture) -> None:
        reply = serve(server("hosts")).send(None, {"Host": host}, method="GET", path="/metrics")
        assert reply.status == 403
        assert "add it to allowed_hosts=" in caplog.text

    def test_one_that_is_allowed_is_served(self, serve: Serve) -> None:
        wire = serve(server("hosts", allowed_hosts=["tools.example"]))
        assert wire.send(None, {"Host": "tools.example:8000"}, method="GET", path="/metrics").status == 200

    def test_it_needs_no_token_and_takes_nothing_but_a_look(self, serve: Serve) -> None:
        wire = serve(server("looks"))
        assert wire.send(None, method="HEAD", path="/metrics").responses[-1].body == b""
        assert wire.send(b"", method="POST", path="/metrics").status == 405

    def test_one_with_a_token_shows_them_to_nobody_else(self, serve: Serve) -> None:
        wire = serve(server("guarded", metrics=Metrics(token="scraper")))
        for sent in ({}, {"Authorization": "Bearer scrape"}, {"Authorization": "Basic scraper"}):
            refused = wire.send(None, sent, method="GET", path="/metrics")
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "mrtr_server" not in refused.responses[-1].body.decode()
        for host in ("127.0.0.1", "tools.example.com"):  # the token says enough, whatever the server is called
            sent = {"Authorization": "bearer scraper", "Host": host}
            assert wire.send(None, sent, method="GET", path="/metrics").status == 200

    @pytest.mark.parametrize("token", ["", "two words", "ünsafe", 3])
    def test_what_can_be_no_token_is_refused_and_not_shown(self, token: Any) -> None:
        with pytest.raises(SetupError, match="token") as raised:
            Metrics(token=token)
        assert "words" not in str(raised.value)

    def test_without_the_setting_there_is_none(self, serve: Serve) -> None:
        assert serve(server("none", metrics=None)).send(None, method="GET", path="/metrics").status == 404


class TestTheSetting:
    @pytest.mark.parametrize("path", ["metrics", "/", "/metrics/", "/mcp", "/health", "/ready"])
    def test_a_path_that_can_not_be_it_is_refused(self, path: str) -> None:
        with pytest.raises(SetupError, match=r"must start with a slash|already used"):
            server("x", metrics=Metrics(path))

    @pytest.mark.parametrize(
        ("library", "setting", "extra"),
        [
            ("prometheus_client", "metrics=Metrics()", "prometheus"),
            ("opentelemetry", "telemetry=True", "otel"),
        ],
    )
    def test_without_the_extra_the_error_says_how_to_install_it(
        self, library: str, setting: str, extra: str, tmp_path: Path
    ) -> None:
        code = f"""
import sys
sys.modules[{library!r}] = None
from mrtr_server import Metrics, MRTRServer, SetupError
try:
    MRTRServer("x", keys=[bytes(32)], {setting})
except SetupError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert f"= needs {library}. Install the extra '{extra}', or: pip install" in done.stdout
