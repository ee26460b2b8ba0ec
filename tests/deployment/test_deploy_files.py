"""The files of `examples/deploy` are what the programs that read them expect, and their times fit together."""

import asyncio
import configparser
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from mrtr_server.cli.run import run
from mrtr_server.deployment.environment import ELSEWHERE, variables

from ..support.wire import ACCEPT, JSON, mirrored, modern

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
KUBERNETES = "1.34"

HAPROXY = (FOLDER / "haproxy.cfg").read_text()

KNOWN = {each.name for each in variables()} | ELSEWHERE.keys() | {"MRTR_APP"}


def seconds(text: str) -> float:
    """Return a duration of nginx, compose or systemd in seconds."""
    return float(text.removesuffix("s"))


def options_of(command: list[str]) -> set[str]:
    """Return the options that a command line gives to `mrtr-server run`."""
    assert command[1] == "run"
    return {word for word in command if word.startswith("--")}


OPTIONS = {name for option in run.params for name in option.opts}


class TestCompose:
    compose: JSON = yaml.safe_load((FOLDER / "compose.yaml").read_text())

    def test_it_is_as_the_specification_has_it(self) -> None:
        schemas = files("check_jsonschema") / "builtin_schemas" / "vendor"
        jsonschema.validate(self.compose, json.loads((schemas / "compose-spec.json").read_text()))

    def test_its_settings_and_options_exist(self) -> None:
        for name in ("tools-1", "tools-2", "tools-3"):
            service = self.compose["services"][name]
            assert service["environment"].keys() <= KNOWN
            assert options_of(service["command"]) <= OPTIONS

    def test_its_times_fit_together(self) -> None:
        service = self.compose["services"]["tools-1"]
        shutdown = float(service["environment"]["MRTR_SHUTDOWN_SECONDS"])
        lame_duck = float(service["environment"]["MRTR_SHUTDOWN_LAME_DUCK"])
        nginx = (FOLDER / "nginx.conf").read_text()
        idle = re.search(r"keepalive_timeout (\w+);", nginx)
        assert idle is not None
        assert seconds(idle[1]) < lame_duck < shutdown < seconds(service["stop_grace_period"])

    def test_nginx_knows_every_replica(self) -> None:
        named = set(re.findall(r"server (tools-\d):8000 ", (FOLDER / "nginx.conf").read_text()))
        assert named == {name for name in self.compose["services"] if name.startswith("tools-")}

    def test_no_client_chooses_the_address_that_the_servers_see(self) -> None:
        headers = re.findall(r"proxy_set_header X-Forwarded-For (\S+);", (FOLDER / "nginx.conf").read_text())
        assert headers == ["$remote_addr"]
        assert "http-request set-header X-Forwarded-For %[src] " in HAPROXY

    def test_haproxy_does_what_nginx_does(self) -> None:
        nginx = (FOLDER / "nginx.conf").read_text()
        assert re.findall(r" (tools-\d:8000)\n", HAPROXY) == re.findall(r" (tools-\d:8000) ", nginx)
        (silence,) = re.findall(r"proxy_read_timeout (\w+);", nginx)
        assert f"timeout server {silence} " in HAPROXY
        (largest,) = re.findall(r"client_max_body_size (\d+)m;", nginx)
        assert f"gt {int(largest) * 1024**2} " in HAPROXY

    def test_haproxy_leaves_a_replica_out_before_it_stops_accepting(self) -> None:
        lame_duck = float(self.compose["services"]["tools-1"]["environment"]["MRTR_SHUTDOWN_LAME_DUCK"])
        checked = re.search(r"check inter (\d+)ms fall (\d+) ", HAPROXY)
        assert checked is not None
        assert int(checked[1]) / 1000 * (int(checked[2]) + 1) <= lame_duck / 2

    def test_no_secret_is_in_it(self) -> None:
        assert "MRTR_KEYS: ${MRTR_KEYS:?" in (FOLDER / "compose.yaml").read_text()


OBJECTS: list[JSON] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


class TestKubernetes:
    @pytest.mark.parametrize("manifest", OBJECTS, ids=lambda manifest: str(manifest["kind"]))
    def test_each_object_is_as_its_schema_has_it(self, manifest: JSON) -> None:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)

    def test_a_misspelt_field_is_found(self) -> None:
        wrong = OBJECTS[0] | {"spec": OBJECTS[0]["spec"] | {"replica": 3}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES, strict=True)

    @property
    def pod(self) -> JSON:
        spec: JSON = OBJECTS[0]["spec"]["template"]["spec"]
        return spec

    @property
    def environment(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return {each["name"]: each.get("value") for each in container["env"]}

    def test_the_grace_period_is_longer_than_the_shutdown_and_that_longer_than_the_lame_duck(self) -> None:
        environment = self.environment
        lame_duck, shutdown = float(environment["MRTR_SHUTDOWN_LAME_DUCK"]), float(environment["MRTR_SHUTDOWN_SECONDS"])
        assert lame_duck < shutdown < self.pod["terminationGracePeriodSeconds"]
        readiness = self.pod["containers"][0]["readinessProbe"]
        assert lame_duck > readiness["periodSeconds"] * readiness["failureThreshold"]

    def test_keys_and_database_come_from_a_secret(self) -> None:
        assert self.environment.keys() <= KNOWN
        assert self.environment["MRTR_KEYS"] is None
        assert self.environment["MRTR_DATABASE_URL"] is None

    def test_the_probes_ask_what_the_server_answers(self) -> None:
        (container,) = self.pod["containers"]
        paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
        assert paths == {"startupProbe": "/health", "readinessProbe": "/ready", "livenessProbe": "/health"}
        assert options_of(container["command"]) <= OPTIONS

    def test_a_new_replica_is_ready_before_an_old_one_ends(self) -> None:
        assert OBJECTS[0]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


class TestSystemd:
    @staticmethod
    def unit(name: str) -> configparser.ConfigParser:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read(FOLDER / "systemd" / name)
        return parser

    def test_the_service_gets_the_socket_and_ends_in_time(self) -> None:
        service, listening = self.unit("tools@.service"), self.unit("tools@.socket")
        assert service["Unit"]["Requires"] == "tools@%i.socket"
        assert listening["Socket"]["ListenStream"] == "127.0.0.1:%i"
        times = dict(each.split("=") for each in shlex.split(service["Service"]["Environment"]))
        lame_duck, shutdown = float(times["MRTR_SHUTDOWN_LAME_DUCK"]), float(times["MRTR_SHUTDOWN_SECONDS"])
        idle = re.search(r"keepalive_timeout (\w+);", (FOLDER / "nginx.conf").read_text())
        assert idle is not None
        assert seconds(idle[1]) < lame_duck < shutdown < float(service["Service"]["TimeoutStopSec"])
        assert service["Service"]["KillSignal"] == "SIGTERM", "which begins the lame duck; others do not"
        assert service["Service"]["KillMode"] == "mixed", "only the supervisor gets it"

    def test_its_command_exists(self) -> None:
        command = shlex.split(self.unit("tools@.service")["Service"]["ExecStart"])
        assert options_of(command) <= OPTIONS


class TestLambda:
    @pytest.fixture(autouse=True)
    def loop(self) -> Iterator[None]:
        """An event loop for Mangum, which would make one and never close it."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        yield
        asyncio.set_event_loop(None)
        loop.close()

    @pytest.fixture
    def function(self) -> ModuleType:
        """The module, as the runtime of Lambda imports it."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MRTR_KEYS", "00" * 32)
            spec = importlib.util.spec_from_file_location("aws_lambda", FOLDER / "aws_lambda.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

    @staticmethod
    def event(message: JSON) -> JSON:
        """Return what an API Gateway sends for a request (payload format 2.0)."""
        headers = {
            "host": "abc.execute-api.eu-west-1.amazonaws.com",
            "content-type": "application/json",
            "accept": ACCEPT,
            **{name.lower(): value for name, value in mirrored(message).items()},
        }
        http = {"method": "POST", "path": "/mcp", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1", "userAgent": "test"}
        return {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": "/mcp",
            "rawQueryString": "",
            "headers": headers,
            "requestContext": {"http": http, "stage": "$default", "domainName": headers["host"]},
            "body": json.dumps(message),
            "isBase64Encoded": False,
        }

    def send(self, function: ModuleType, params: JSON) -> JSON:
        reply = function.handler(self.event(modern("tools/call", params)), None)
        assert reply["statusCode"] == 200, reply
        result: JSON = json.loads(reply["body"])["result"]
        return result

    def test_a_flow_of_two_rounds_goes_through_two_events(self, function: ModuleType) -> None:
        params: JSON = {"name": "get_weather", "arguments": {"location": "Oslo"}}
        asked = self.send(function, params)
        assert asked["inputRequests"].keys() == {"github_login"}
        answer = {"github_login": {"action": "accept", "content": {"name": "octocat"}}}
        done = self.send(function, params | {"requestState": asked["requestState"], "inputResponses": answer})
        assert done["content"][0]["text"] == "Weather in Oslo for octocat: 72°F, partly cloudy"
