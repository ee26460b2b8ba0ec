"""examples/rolling_upgrade.py: a flow that goes on on version 2 is asked for the new login only."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from examples import rolling_upgrade
from examples.rolling_upgrade import v1, v2
from mrtr_server import KeyRing
from mrtr_server.testing import Client, replica

from ..support.serving import KEYS, in_process
from ..support.wire import text_of
from .pasting import commands, needs_curl, paste, shown_replies

GITHUB = {"name": "octocat"}
GOOGLE = {"email": "octocat@example.com"}
MICROSOFT = {"account": "octocat@example.org"}
LINKED = "Linked octocat and octocat@example.org."

NAMED = dict(zip(("v1", "v2"), ("8001", "8002"), strict=True))


class TestInProcess:
    @pytest.fixture(autouse=True)
    def one_fleet(self) -> None:
        ring = KeyRing.generate()
        self.old, self.new = replica(v1, keys=ring), replica(v2, keys=ring)

    def test_only_the_new_login_is_asked_for(self) -> None:
        flow = Client(self.old).flow("link_accounts")
        assert flow.start().asks.keys() == {"github_login", "google_login"}
        flow.move_to(self.new)
        assert flow.answer(github_login=GITHUB, google_login=GOOGLE).asks.keys() == {"microsoft_login"}
        assert flow.answer(microsoft_login=MICROSOFT).text == LINKED

    def test_an_answer_that_is_still_missing_is_asked_for_with_the_new_one(self) -> None:
        flow = Client(self.old).flow("link_accounts")
        flow.start()
        flow.move_to(self.new)
        assert flow.answer(google_login=GOOGLE).asks.keys() == {"github_login", "microsoft_login"}

    def test_going_back_asks_for_what_the_old_version_lacks(self) -> None:
        flow = Client(self.new).flow("link_accounts")
        flow.start()
        flow.move_to(self.old)
        assert flow.answer(github_login=GITHUB, microsoft_login=MICROSOFT).asks.keys() == {"google_login"}
        assert flow.answer(google_login=GOOGLE).text == "Linked octocat and octocat@example.com."

    def test_an_answer_is_kept_through_a_round_of_a_version_that_does_not_ask_for_it(self) -> None:
        flow = Client(self.old).flow("link_accounts")
        flow.start()
        flow.move_to(self.new)
        flow.answer(github_login=GITHUB, google_login=GOOGLE)
        flow.move_to(self.old)  # rolled back
        assert flow.send().text == "Linked octocat and octocat@example.com."

    @pytest.mark.parametrize("version", [v1, v2], ids=NAMED)
    def test_a_flow_of_one_version_asks_once(self, version: object) -> None:
        fleet = [self.old, self.old] if version is v1 else [self.new, self.new]
        done = Client(
            *fleet, answers={"github_login": GITHUB, "google_login": GOOGLE, "microsoft_login": MICROSOFT}
        ).call("link_accounts")
        assert done.rounds == 2


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    logs = tmp_path_factory.mktemp("upgrade")
    with ExitStack() as stack:
        urls = {}
        for version in NAMED:
            target = f"examples.rolling_upgrade:{version}"
            environment = {"MRTR_KEYS": KEYS}
            server = stack.enter_context(in_process(target, log=logs / version, environment=environment))
            assert server.port, server.text
            urls[version] = f"http://127.0.0.1:{server.port}/mcp"
        yield urls


class TestInProcesses:
    @pytest.mark.parametrize("dialect", ["2026-07-28", "sep-draft"])
    def test_only_the_new_login_is_asked_for(self, urls: dict[str, str], dialect: str) -> None:
        flow = Client(urls["v1"], era=dialect).flow("link_accounts")
        assert flow.start().asks.keys() == {"github_login", "google_login"}
        flow.move_to(urls["v2"])
        assert flow.answer(github_login=GITHUB, google_login=GOOGLE).asks.keys() == {"microsoft_login"}
        assert flow.answer(microsoft_login=MICROSOFT).text == LINKED

    @needs_curl
    def test_the_lines_of_the_docstring_work(self, urls: dict[str, str]) -> None:
        started, rounds = commands(rolling_upgrade)
        assert started == [f"uvicorn examples.rolling_upgrade:{name} --port {port}" for name, port in NAMED.items()]
        for name, port in NAMED.items():
            rounds = rounds.replace(f"http://127.0.0.1:{port}/mcp", urls[name])
        first, second, third = shown_replies(*paste(rounds))
        assert first["result"]["inputRequests"].keys() == {"github_login", "google_login"}
        assert second["result"]["inputRequests"].keys() == {"microsoft_login"}
        assert text_of(third) == LINKED
