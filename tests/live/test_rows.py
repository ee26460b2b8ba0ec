"""Whatever a client of the handshake era can make a server store counts in the share of its caller, and has a bound."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mrtr_server import InProcessStore, KeyRing, Limits, MRTRServer, Principal, Redemption
from mrtr_server.errors import Busy
from mrtr_server.live import session_states
from mrtr_server.live.session_states import Allowance
from mrtr_server.storage.quotas import ANY, Quota, Quotas
from mrtr_server.testing import Clock

from ..support.handshake import Handshake
from ..support.live_app import GATE, register
from ..support.serving import TIMEOUT, in_thread, wait_until
from ..support.users import Bearer
from ..support.wire import text_of

JANE = Quotas(KeyRing([bytes(32)]), Limits()).of(Principal("jane"))


class Recording(InProcessStore):
    """Notes for whom each row is stored."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, Quota] = {}

    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        is_new = await super().put(key, value, keep=keep, quota=quota)
        if is_new:
            self.rows[key] = quota
        return is_new

    async def replace(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> None:
        self.rows[key] = quota
        await super().replace(key, value, keep=keep, quota=quota)

    async def redeem(self, state: str, answers: str, *, quota: Quota = ANY, **terms: Any) -> Redemption:
        self.rows[state] = quota
        return await super().redeem(state, answers, quota=quota, **terms)

    async def release(self, state: str, token: str) -> None:
        self.rows.pop(state)  # it is gone when the request ends
        await super().release(state, token)


@contextmanager
def serving() -> Iterator[tuple[Recording, Handshake]]:
    """Serve a user whose rows are noted."""
    store = Recording()
    app = register(MRTRServer("live", keys=[bytes(32)], auth=Bearer(), store=store))
    with in_thread(app, wait=False) as port:
        client = Handshake([f"http://127.0.0.1:{port}/mcp"], headers={"Authorization": "jane"})
        client.begin()
        store.rows.clear()
        yield store, client
        client.close()


def answer(client: Handshake) -> None:
    with client.calling("greet") as stream:
        client.accept(stream.ask(), name="jane")
        assert text_of(stream.end()) == "Hello, jane!"


def ask_at_length(client: Handshake) -> None:
    with client.calling("greet", greeting="x" * 5_000) as stream:
        stream.ask()


def cancel(client: Handshake) -> None:
    client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}})


def end(client: Handshake) -> None:
    assert client.http.delete(client.urls[0], headers=client.given()).status_code == 204


ROWS: dict[str, tuple[Callable[[Handshake], Any], int]] = {
    "an answer, and what came of its round": (answer, 2),
    "an event too long for a header": (ask_at_length, 1),
    "a cancellation": (cancel, 1),
    "the level of a session's log": (lambda client: client.send("logging/setLevel", {"level": "info"}), 1),
    "a subscription": (lambda client: client.send("resources/subscribe", {"uri": "notes://1"}), 1),
    "the end of a session": (end, 1),
}


def assert_that_jane_has(store: Recording, rows: int) -> None:
    wait_until(lambda: len(store.rows) >= rows, f"{rows} rows")
    assert len(store.rows) == rows
    assert {quota.caller for quota in store.rows.values()} == {JANE.caller}


@pytest.mark.parametrize("kind", ROWS)
def test_each_row_counts_for_its_caller(kind: str) -> None:
    act, rows = ROWS[kind]
    with serving() as (store, client):
        act(client)
        assert_that_jane_has(store, rows)


def test_the_row_of_a_first_round_whose_client_has_left_counts_for_its_caller(noticed: threading.Event) -> None:
    GATE.clear()
    with serving() as (store, client):
        with client.open("tools/call", {"name": "wait", "_meta": {"progressToken": 1}}) as stream:
            stream.next()
        assert noticed.wait(TIMEOUT)
        GATE.set()
        assert_that_jane_has(store, 1)


def test_who_comes_back_to_a_stream_often_has_one_row() -> None:
    with serving() as (store, client):
        with client.calling("greet", greeting="x" * 5_000) as stream:
            stream.ask()
            last = stream.last_id
        for _ in range(5):
            with client.resume(last) as again:
                assert next(again.events()).kind == "prime"
        assert len(store.rows) == 1


def test_cancellations_and_changes_of_sessions_beyond_an_allowance_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_states, "MOST_CHANGES", 3)
    with serving() as (store, client):
        for id in range(9):
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
            assert client.post(note).status == 202
        assert len(store.rows) == 3
        store.rows.clear()
        replies = []
        for _ in range(5):
            client.begin()
            replies.append(client.send("logging/setLevel", {"level": "info"}))
        assert {reply.status for reply in replies} == {200}
        assert ["error" in reply.message for reply in replies] == [False] * 3 + [True] * 2
        assert replies[-1].error.code == -31002


def test_the_cancellation_of_a_request_that_was_answered_here_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients send one after each call (opencode does): it costs nothing, and leaves room for those that count."""
    monkeypatch.setattr(session_states, "MOST_CHANGES", 1)

    def cancel_last() -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.ids}}
        assert client.post(note).status == 202

    def come_back() -> None:
        with client.calling("greet") as stream:
            asked = stream.ask()
        with client.resume(stream.last_id) as again:
            client.accept(asked, name="jane")
            assert text_of(again.end()) == "Hello, jane!"
        time.sleep(0.3)  # until the one who held the stream that broke has heard of the result, too

    ended: list[Callable[[], Any]] = [
        lambda: client.call("add", a=1, b=2).result,
        lambda: client.call("nothing").error,
        lambda: client.call("fail").result["isError"],
        lambda: client.send("tools/list").result,
        lambda: client.send("nothing/known").error,
        lambda: answer(client),
        come_back,
    ]
    with serving() as (store, client):
        for each in ended:
            each()
            store.rows.clear()
            cancel_last()
            cancel_last()
            assert not store.rows
        with client.calling("greet") as stream:  # an open one is cancelled
            stream.ask()
            store.rows.clear()
            cancel_last()
            assert "id" not in stream.next(), "its question is withdrawn"
            assert list(stream.events()) == []
        wait_until(lambda: bool(store.rows), "the cancellation to be kept")


def test_an_allowance_counts_each_thing_once_and_each_owner_alone_until_its_window_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_states, "MOST_CHANGES", 2)
    monkeypatch.setattr(session_states, "MOST_OF_NOBODY", 3)
    clock = Clock(0.0)
    allowance, jane, john = Allowance(clock), Principal("jane"), Principal("john")
    for what in ("a", "a", "b", "a"):
        allowance.take(jane, what)
    with pytest.raises(Busy):
        allowance.take(jane, "c")
    allowance.take(jane, "b")
    allowance.take(john, "c")
    for what in "abc":
        allowance.take(None, what)
    with pytest.raises(Busy):
        allowance.take(None, "d")
    clock.advance(session_states.WINDOW)
    allowance.take(jane, "c")
    allowance.take(None, "d")
