"""Two users behind a real issuer can't use what belongs to the other, whichever replica they come to."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from mrtr_server import Limits
from mrtr_server.testing import Client, Flow, Reply, accept

from ..support.authorization_server import AuthorizationServer, Tenant
from ..support.handshake import Handshake
from ..support.serving import KEYS, TIMEOUT, in_process, wait_until
from ..support.wire import ACCEPT, JSON, mirrored, modern, text_of

AUDIENCE = "https://tools.example.com/mcp"
REPLICAS = 3
ROUNDS = Limits().rounds
SHARE_OF_STATES = 30
"""What `issued_app` lets one caller store; its limits are totals."""


class IssuedSite:
    """Replicas that share a database, and tokens for their users."""

    def __init__(self, issuer: Tenant, urls: list[str]) -> None:
        self.issuer = issuer
        self.urls = urls

    def token(self, user: str, client: str = "desk", scope: str = "") -> str:
        """Return another token of a user."""
        return self.issuer.mint(AUDIENCE, subject=user, client=client, scope=scope)

    def client(self, replica: int, user: str, client: str = "desk", *, tasks: bool = True) -> Client:
        """Return a client of one replica, with a token of its own."""
        return Client(self.urls[replica % REPLICAS], token=self.token(user, client), tasks=tasks, log_level=None)

    def session(self, replica: int, user: str, session: str = "") -> Handshake:
        """Return a client that begins with a handshake, or that has somebody's session."""
        given = {"Authorization": f"Bearer {self.token(user)}"}
        client = Handshake([self.urls[replica % REPLICAS]], headers=given, session=session)
        if not session:
            client.begin()
        return client


@pytest.fixture(scope="module")
def site(authorization_server: AuthorizationServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IssuedSite]:
    folder: Path = tmp_path_factory.mktemp("site")
    issuer = authorization_server.tenant()
    environment = {
        "MRTR_KEYS": KEYS,
        "MRTR_DATABASE_URL": f"sqlite:///{folder}/site.db",
        "ISSUER": issuer.url,
        "AUDIENCE": AUDIENCE,
    }
    with ExitStack() as stack:
        urls = []
        for number in range(REPLICAS):
            log = folder / f"log-{number}"
            server = stack.enter_context(in_process("tests.support.issued_app:app", log=log, environment=environment))
            assert server.port, server.text
            urls.append(f"http://127.0.0.1:{server.port}/mcp")
        yield IssuedSite(issuer, urls)


def code_of(reply: Reply) -> int | None:
    """Return the code of an error; None if it is none."""
    return reply.error.code if "error" in reply.message else None


def answer(
    site: IssuedSite, tool: str, flow: Flow, replica: int, user: str, client: str = "desk"
) -> tuple[int | None, str]:
    """Send the answer to a flow's question as somebody, to another replica; return the error's code and the text."""
    (key,) = flow.replies[-1].asks
    given = {"action": "accept", "content": {"name": "al", "confirm": True}}
    params = {"inputResponses": {key: given}, "requestState": flow.replies[-1].state}
    reply = site.client(replica, user, client).request("tools/call", {"name": tool, "arguments": {}, **params})
    return (code, "") if (code := code_of(reply)) is not None else (None, reply.text)


@pytest.mark.parametrize("tool", ["ask", "pay"])
def test_a_state_opens_for_its_user_and_client_alone(site: IssuedSite, tool: str) -> None:
    flow = site.client(0, "alice", tasks=False).flow(tool)
    flow.start()
    assert answer(site, tool, flow, 1, "bob") == (-32602, "")
    assert answer(site, tool, flow, 1, "alice", "phone") == (-32602, ""), "another client of hers"
    code, text = answer(site, tool, flow, 2, "alice")
    assert (code, "alice" in text) == (None, True), "with another token of the same client"


def test_a_state_that_was_redeemed_tells_its_outcome_to_its_user_alone(site: IssuedSite) -> None:
    flow = site.client(0, "alice", tasks=False).flow("pay")
    flow.start()
    assert answer(site, "pay", flow, 0, "alice") == (None, "paid by alice")
    assert answer(site, "pay", flow, 1, "alice") == (None, "paid by alice"), "a repetition"
    assert answer(site, "pay", flow, 1, "bob") == (-32602, "")


def test_a_task_exists_for_its_user_alone(site: IssuedSite) -> None:
    alice = site.client(0, "alice")
    started = alice.flow("work")
    started.start()
    task = {"taskId": started.replies[-1].task.id}
    wait_until(lambda: site.client(1, "alice").request("tasks/get", task).task.status == "input_required", "the ask")
    (key,) = site.client(1, "alice").request("tasks/get", task).asks
    given: JSON = {"inputResponses": {key: {"action": "accept", "content": {"name": "eve"}}}}
    for who, client in (("bob", "desk"), ("alice", "phone")):
        other = site.client(2, who, client)
        for method, more in {"tasks/get": {}, "tasks/update": given, "tasks/cancel": {}}.items():
            reply = other.request(method, {**task, **more})
            assert code_of(reply) == -32602, (who, method)
    given["inputResponses"][key]["content"] = {"name": "al"}
    site.client(2, "alice").request("tasks/update", {**task, **given})
    wait_until(lambda: site.client(1, "alice").request("tasks/get", task).task.status == "completed", "the end")
    assert site.client(1, "alice").request("tasks/get", task).text == "al for alice"


def test_a_session_is_worth_nothing_to_another_user(site: IssuedSite) -> None:
    alice = site.session(0, "alice")
    mallory = site.session(1, "bob", alice.session)
    assert mallory.http.delete(mallory.urls[0], headers=mallory.given()).status_code == 405, "it ends nothing"
    assert mallory.post(mallory.request("resources/subscribe", {"uri": "note://one"})).code == -32602
    assert alice.post(alice.request("ping")).status == 200
    alice.urls = [site.urls[2]]
    assert alice.post(alice.request("resources/subscribe", {"uri": "note://one"})).result == {}
    for client in (alice, mallory):
        client.close()


def test_a_question_of_an_open_call_is_answered_by_its_user_alone(site: IssuedSite) -> None:
    alice = site.session(0, "alice")
    with alice.calling("ask") as stream:
        asked = stream.ask()
        answered = {"jsonrpc": "2.0", "id": asked["id"], "result": accept(name="eve").raw}
        mallory = site.session(1, "bob", alice.session)
        assert mallory.post(answered).status == 400
        honest = site.session(2, "alice", alice.session)
        answered["result"] = accept(name="al").raw
        assert honest.post(answered).status == 202
        assert text_of(stream.end()) == "al for alice"
    for client in (alice, mallory, honest):
        client.close()


def test_a_share_is_of_the_person_and_used_up_for_nobody_else(site: IssuedSite) -> None:
    def start(replica: int, who: str, client: str) -> int | None:
        return code_of(site.client(replica, who, client).flow("work").start())

    assert [start(number, "greedy", f"client-{number}") for number in range(5)] == [None] * 4 + [-31002]
    assert start(1, "modest", "desk") is None


def test_tries_of_another_user_use_up_nothing_of_a_flow(site: IssuedSite) -> None:
    flow = site.client(0, "alice", tasks=False).flow("pay")
    flow.start()
    tries = [answer(site, "pay", flow, number, "bob") for number in range(ROUNDS + 2)]
    assert set(tries) == {(-32602, "")}, "the budget of rounds is not his to use"
    assert answer(site, "pay", flow, 1, "alice") == (None, "paid by alice"), "nor is the one use of its state"


def test_a_list_of_tasks_has_those_of_its_user_alone(site: IssuedSite) -> None:
    alice, bob = site.session(0, "listing"), site.session(1, "bob")
    begun = alice.post(alice.request("tools/call", {"name": "work", "arguments": {}, "task": {}})).result
    id = begun["task"]["taskId"]

    def listed(client: Handshake, replica: int) -> list[str]:
        client.urls = [site.urls[replica]]
        return [task["taskId"] for task in client.post(client.request("tasks/list", {})).result["tasks"]]

    assert listed(alice, 2) == [id]
    assert id not in listed(bob, 2)
    for client in (alice, bob):
        client.close()


def test_used_states_count_in_the_share_of_the_person_at_every_replica(site: IssuedSite) -> None:
    def pay(number: int, who: str) -> int | None:
        client = f"client-{number}"  # another one does not help
        flow = site.client(number, who, client, tasks=False).flow("pay")
        flow.start()
        return answer(site, "pay", flow, number + 1, who, client)[0]

    with ThreadPoolExecutor(4) as threads:
        codes = list(threads.map(lambda number: pay(number, "spender"), range(SHARE_OF_STATES + 4)))
    assert codes.count(None) in range(SHARE_OF_STATES, SHARE_OF_STATES + 4), "some that came at once, at most"
    assert pay(1, "spender") == -31002
    assert pay(1, "saver") is None


def test_streams_count_in_the_share_of_the_person(site: IssuedSite) -> None:
    message = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})

    def listen(stack: ExitStack, who: str, client: str) -> int:
        headers = {**mirrored(message), "Accept": ACCEPT, "Authorization": f"Bearer {site.token(who, client)}"}
        http = stack.enter_context(httpx.Client(trust_env=False, timeout=TIMEOUT))
        response = stack.enter_context(http.stream("POST", site.urls[0], json=message, headers=headers))
        return response.status_code

    with ExitStack() as stack:
        assert [listen(stack, "hoarder", f"client-{number}") for number in range(3)] == [200, 200, 429]
        assert listen(stack, "listener", "desk") == 200


def test_scopes_are_those_of_the_token_of_the_request(site: IssuedSite) -> None:
    for scope, status in (("", 403), ("files:write", 200), ("files:read", 403)):
        client = Client(site.urls[0], token=site.token("alice", scope=scope), log_level=None)
        assert client.request("tools/call", {"name": "save", "arguments": {}}).status == status


def test_a_token_for_another_server_is_worth_nothing_here(site: IssuedSite) -> None:
    token = site.issuer.mint("https://other.example.com/mcp", subject="alice")
    assert Client(site.urls[0], token=token).request("tools/list", {}).status == 401


def test_a_rate_that_one_user_has_used_up_leaves_the_other_theirs(site: IssuedSite) -> None:
    """It is counted in each process here; `tests/flow/test_rate_storage.py` has one count for all replicas."""

    def search(user: str, client: str = "desk") -> tuple[int, str]:
        reply = site.client(0, user, client).request("tools/call", {"name": "search", "arguments": {}})
        return reply.status, "" if "error" in reply.message else reply.text

    assert [search("alice") for _ in range(3)] == [(200, "nothing for alice")] * 3
    assert search("alice", "phone") == (429, ""), "it is hers, whatever client she uses"
    assert search("bob") == (200, "nothing for bob")
