"""Ids of sessions, questions and events open for the user and the purpose that they were sealed for alone."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import ClientInfo, InProcessStore, KeyRing, Limits, MRTRServer, Principal, SealedCodec, Store
from mrtr_server.flow.admission import Admission
from mrtr_server.live.answers import SentQuestion
from mrtr_server.live.events import Origin, StreamEvent
from mrtr_server.live.parts import LiveParts
from mrtr_server.protocol.messages import Question
from mrtr_server.protocol.sessions import Session
from mrtr_server.storage.quotas import Quotas

from ..support.effects import EFFECTS
from ..support.handshake import Handshake
from ..support.live_app import register
from ..support.serving import in_thread
from ..support.users import Bearer
from ..support.wire import text_of
from .conftest import Connect


class Noting:
    """A codec of an author's own, which notes what it does."""

    def __init__(self) -> None:
        self.codec = SealedCodec(KeyRing([bytes(32)]), "own")
        self.did: list[str] = []

    def seal(self, payload: bytes) -> str:
        self.did.append("seal")
        return self.codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        self.did.append("unseal")
        return self.codec.unseal(token)


def test_a_codec_of_ones_own_protects_the_journal_of_an_open_call(connect: Connect) -> None:
    codec = Noting()
    client = connect(app={"codec": codec})
    with client.calling("greet") as stream:
        client.accept(stream.ask(), name="octocat")
        assert text_of(stream.end()) == "Hello, octocat!"
    assert codec.did == ["seal", "unseal"]


JANE, JOHN = Principal("jane"), Principal("john")


@contextmanager
def two_users(**options: Any) -> Iterator[tuple[Handshake, Handshake]]:
    """Serve two users, each in a session of their own."""
    app = register(MRTRServer("live", keys=[bytes(32)], auth=Bearer(), **options))
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{stack.enter_context(in_thread(app))}/mcp"
        clients = [Handshake([url], headers={"Authorization": name}) for name in ("jane", "john")]
        for client in clients:
            stack.callback(client.close)
            client.begin()
        yield clients[0], clients[1]


@pytest.fixture
def users(tmp_path: Path) -> Iterator[tuple[Handshake, Handshake]]:
    with two_users(store=f"sqlite:///{tmp_path}/live.db") as both:
        yield both


class TestUsers:
    def test_one_of_them_holds_no_more_than_a_share_of_the_streams(self) -> None:
        with two_users(limits=Limits(held_streams=10, caller_share=0.1)) as (jane, john), jane.calling("greet") as held:
            asked = held.ask()
            reply = jane.call("greet")
            assert (reply.status, reply.code) == (200, -31002)
            assert reply.error.data == {"limit": "held_streams", "value": 1}
            assert jane.http.get(jane.urls[0], headers=jane.given()).status_code == 405
            with john.calling("greet") as stream:
                john.accept(stream.ask(), name="john")
                assert text_of(stream.end()) == "Hello, john!"
            jane.accept(asked, name="jane")
            assert text_of(held.end()) == "Hello, jane!"

    def test_an_answer_of_another_user_does_not_count(self, users: tuple[Handshake, Handshake]) -> None:
        jane, john = users
        with jane.calling("greet") as stream:
            asked = stream.ask()
            john.session = jane.session
            reply = john.answer(asked, {"action": "accept", "content": {"name": "john"}})
            assert reply.status == 400
            jane.accept(asked, name="jane")
            assert text_of(stream.end()) == "Hello, jane!"
        assert EFFECTS == ["greeted jane"]

    def test_a_stream_of_another_user_is_not_resumed(self, users: tuple[Handshake, Handshake]) -> None:
        jane, john = users
        with jane.calling("greet") as stream:
            jane.accept(stream.ask(), name="jane")
            stream.end()
        last = stream.last_id
        with jane.calling("greet") as stream:
            stream.ask()
        for id in (stream.last_id, last):
            reply = john.http.get(john.urls[0], headers=john.given(Last_Event_ID=id))
            assert reply.status_code == 405

    def test_a_session_of_another_user_is_none(self, users: tuple[Handshake, Handshake]) -> None:
        jane, john = users
        own, john.session = john.session, jane.session
        assert john.http.delete(john.urls[0], headers=john.given()).status_code == 405
        assert john.send("resources/subscribe", {"uri": "notes://1"}).code == -32602
        john.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": jane.ids}})
        john.session = own
        assert jane.send("ping").status == 200
        assert jane.http.delete(jane.urls[0], headers=jane.given()).status_code == 204


def parts(audience: str = "live", key: bytes = bytes(32), store: Store | None = None) -> LiveParts:
    """Return what a server's calls share."""
    limits, store, ring = Limits(), store or InProcessStore(), KeyRing([key])
    return LiveParts(
        ring,
        audience,
        store,
        store.fanout(),
        Quotas(ring, limits),
        limits,
        Admission(limits),
        lambda: 1e9,
        is_shared=True,
    )


OURS = parts()
OTHERS = [parts("another server"), parts(key=b"\1" * 32)]
ORIGIN = Origin("tools/call", {"name": "x"}, 1, Session("v", ClientInfo({"name": "n"}, {}), 1.0, "key"))
ASK = SentQuestion("round", "key", 2e9)
EVENT = StreamEvent(
    ORIGIN, state="state", questions={"k": Question("form", "m", {"message": "?"}, ("x",))}, expires=2e9
)

SEALED = {
    "session": OURS.sessions.seal("v", ClientInfo(), JANE).decode(),
    "question": parts().answers.seal(ASK, JANE),
    "question that waits here": OURS.answers.seal(ASK, JANE),
    "event": OURS.events.seal(EVENT, JANE).after(1),
}


def opened(id: str, principal: Principal | None, by: LiveParts) -> set[str]:
    """Return as what an id opens."""
    found: dict[str, Any] = {
        "session": by.sessions.unseal(id.encode("utf-8", "replace"), principal).key != "",
        "question": by.answers.unseal(id, principal) is not None,
        "event": asyncio.run(by.events.unseal(id, principal)) is not None,
    }
    return {kind for kind, is_open in found.items() if is_open}


@pytest.mark.parametrize("kind", SEALED)
class TestSealing:
    def test_it_opens_for_its_user_and_purpose_alone(self, kind: str) -> None:
        assert opened(SEALED[kind], JANE, OURS) == {kind.partition(" ")[0]}

    def test_it_opens_for_nobody_else(self, kind: str) -> None:
        for other in (JOHN, None, Principal("jane", issuer="x"), Principal("jane", client_id="x")):
            assert opened(SEALED[kind], other, OURS) == set()

    def test_it_opens_at_no_other_server_and_under_no_other_key(self, kind: str) -> None:
        for other in OTHERS:
            assert opened(SEALED[kind], JANE, other) == set()

    def test_no_change_of_it_opens(self, kind: str) -> None:
        id = SEALED[kind]
        sealed = id.rpartition(".")[0] or id
        for at in range(0, len(sealed), 7):
            changed = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :] + id[len(sealed) :]
            assert opened(changed, JANE, OURS) == set()
        for shorter in (id[:-1] if kind != "event" else sealed, id[1:], "", "."):
            assert opened(shorter, JANE, OURS) == set()


@given(
    st.text(max_size=200)
    | st.sampled_from([f"{sealed}.{end}" for sealed in SEALED.values() for end in ("x", "-1", "99999", "١")])
)
def test_nothing_that_is_made_up_opens(id: str) -> None:
    assert opened(id, JANE, OURS) == set()


def test_a_session_is_the_same_where_it_began_and_elsewhere_and_when_it_has_been_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mrtr_server.protocol.sessions._REMEMBERED", 2)
    began, client = (
        parts().sessions,
        ClientInfo({"name": "n", "version": "1"}, {"elicitation": {"url": {}}, "roots": {}}),
    )
    id = began.seal("2025-11-25", client, JANE)
    here, elsewhere = began.unseal(id, JANE), parts().sessions.unseal(id, JANE)
    assert here == elsewhere
    assert (here.version, here.client.name, here.client.supports("elicitation.url")) == ("2025-11-25", "n", True)
    others = [began.seal("2025-11-25", client, JANE) for _ in range(5)]
    assert began.unseal(id, JANE) == here
    assert len({began.unseal(each, JANE).key for each in (id, *others)}) == 6


def test_an_answer_is_not_moved_to_another_question() -> None:
    """Who can write to the store can't put one answer in the place of another."""

    class Elsewhere(InProcessStore):
        in_memory = False

    async def move() -> None:
        ours, other = parts(store=Elsewhere()), SentQuestion("round", "another", 2e9)
        await ours.answers.keep(ASK, {"result": {"action": "accept"}}, None)
        kept = await ours.store.get(ours.answers.row_of(ASK))
        assert kept is not None
        await ours.store.put(ours.answers.row_of(other), kept, keep=60)
        assert await ours.answers.find(ASK) == {"result": {"action": "accept"}}
        with pytest.raises(Exception, match="can't be unsealed"):
            await ours.answers.find(other)

    asyncio.run(move())
