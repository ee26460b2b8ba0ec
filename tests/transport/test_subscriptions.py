"""Subscriptions: what a listener is told and when, and that one who never reads or just vanishes costs nothing."""

import asyncio
import gc
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from mrtr_server import Fanout, MRTRServer
from mrtr_server.concurrency import waiting
from mrtr_server.protocol.messages import Change, Subscription
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.transport import connection

from ..conftest import Serve
from ..support.direct import Exchange, headers_for, scope_of, send
from ..support.serving import TIMEOUT, Process, in_process, in_thread, wait_until
from ..support.stores import carrying
from ..support.wire import EVERYTHING, JSON, PREFIX, TASKS, Listener, Reply, Wire, message_problems, modern

SUBSCRIPTION = PREFIX + "subscriptionId"
ALL: JSON = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@pytest.fixture
def fanout() -> InProcessFanout:
    return InProcessFanout()


@pytest.fixture
def app(fanout: InProcessFanout) -> MRTRServer:
    served = MRTRServer("changing", keys=[bytes(32)], store=carrying(fanout))

    @served.tool
    def change() -> str:
        served.notify_tools_changed()
        return "changed"

    served.prompt(name="greet")(lambda: "hi")
    served.resource("doc://{+path}", name="doc")(lambda path: path)
    return served


def listeners(fanout: InProcessFanout) -> int:
    return len(fanout._listeners)


@contextmanager
def listening(wire: Wire, wanted: JSON, id: str | int = "sub-1") -> Iterator[Listener]:
    """Open a subscription, and read its acknowledgment."""
    message = modern("subscriptions/listen", {"notifications": wanted}, id=id)
    headers = headers_for(message)
    with wire.client.stream("POST", wire.url, content=json.dumps(message), headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        yield Listener(response.iter_lines())


class TestOpening:
    def test_is_acknowledged_first_with_what_was_agreed(self, app: MRTRServer, serve: Serve) -> None:
        uris = [f"doc://{number}" for number in range(20)]
        wanted = {"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": uris[::-1]}
        with listening(serve(app), wanted, id=1_800_000_000_000) as listener:
            app.notify_tools_changed()
            assert listener.next() == {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {
                    "_meta": {SUBSCRIPTION: 1_800_000_000_000},
                    "notifications": {"toolsListChanged": True, "resourceSubscriptions": sorted(uris)},
                },
            }

    @pytest.mark.parametrize("wanted", [{}, {"toolsListChanged": False}, {"resourceSubscriptions": []}, {"unheard": 1}])
    def test_to_nothing_is_agreed_and_stays_silent(self, app: MRTRServer, serve: Serve, wanted: JSON) -> None:
        with listening(serve(app), wanted) as listener:
            assert listener.next()["params"]["notifications"] == {}

    def test_is_agreed_to_for_what_the_server_offers_and_no_more(self, serve: Serve) -> None:
        app = MRTRServer("notes", keys=[bytes(32)])
        wire = serve(app)
        wanted = {**ALL, "resourceSubscriptions": ["notes://1", "notes://2/b", "other://1"]}
        with listening(wire, wanted) as listener:
            assert listener.next()["params"]["notifications"] == ALL, "it may get its first ones now"
        app.prompt(name="greet")(lambda: "hi")
        app.resource("notes://{name}", name="note")(lambda name: name)
        with listening(wire, wanted) as listener:
            assert listener.next()["params"]["notifications"] == {
                "promptsListChanged": True,
                "resourcesListChanged": True,
                "resourceSubscriptions": ["notes://1"],
            }
            app.notify_tools_changed()  # of which it was not agreed to tell
            app.notify_resource_updated("other://1")
            app.notify_resource_updated("notes://1")
            assert listener.next()["params"]["uri"] == "notes://1"

    def test_needs_a_client_that_takes_a_stream(self, app: MRTRServer, serve: Serve, fanout: InProcessFanout) -> None:
        message = modern("subscriptions/listen", {"notifications": ALL}, id=7)
        reply = serve(app).post(message, {"Accept": "application/json"})
        assert (reply.status, reply.code, reply.message["id"]) == (400, -32600, 7)
        assert listeners(fanout) == 0

    def test_needs_no_capabilities(self, app: MRTRServer, serve: Serve) -> None:
        message = modern("subscriptions/listen", {"notifications": ALL}, capabilities={})
        wire = serve(app)
        with wire.client.stream(
            "POST", wire.url, content=json.dumps(message), headers=headers_for(message)
        ) as response:
            assert response.status_code == 200


class TestChanges:
    def test_are_told_by_kind_with_the_id_of_the_subscription(self, app: MRTRServer, serve: Serve) -> None:
        with listening(serve(app), {**ALL, "resourceSubscriptions": ["doc://1"]}, id="s") as listener:
            listener.next()
            meta = {SUBSCRIPTION: "s"}
            changes: dict[str, Callable[[], None]] = {
                "notifications/tools/list_changed": app.notify_tools_changed,
                "notifications/prompts/list_changed": app.notify_prompts_changed,
                "notifications/resources/list_changed": app.notify_resources_changed,
                "notifications/resources/updated": lambda: app.notify_resource_updated("doc://1"),
            }
            for method, notify in changes.items():
                notify()
                params = {"_meta": meta, "uri": "doc://1"} if "updated" in method else {"_meta": meta}
                assert listener.next() == {"jsonrpc": "2.0", "method": method, "params": params}

    def test_that_were_not_asked_for_are_not_told(self, app: MRTRServer, serve: Serve) -> None:
        wanted = {"promptsListChanged": True, "resourceSubscriptions": ["doc://1"]}
        with listening(serve(app), wanted) as listener:
            listener.next()
            app.notify_tools_changed()
            app.notify_resources_changed()
            app.notify_resource_updated("doc://2")
            app.notify_resource_updated("doc://1/below")
            app.notify_prompts_changed()
            assert listener.next()["method"] == "notifications/prompts/list_changed"
            app.notify_resource_updated("doc://1")
            assert listener.next()["params"]["uri"] == "doc://1"

    def test_of_a_tool_call_reach_the_listeners_of_other_connections(self, app: MRTRServer, serve: Serve) -> None:
        wire = serve(app)
        with listening(wire, ALL, id="one") as one, listening(wire, ALL, id="two") as two:
            one.next()
            two.next()
            assert wire.call("change").text == "changed"
            for listener, id in ((one, "one"), (two, "two")):
                assert listener.next()["params"]["_meta"] == {SUBSCRIPTION: id}

    def test_may_be_told_from_any_thread(self, app: MRTRServer, serve: Serve) -> None:
        with listening(serve(app), ALL) as listener:
            listener.next()
            threads = [threading.Thread(target=app.notify_tools_changed) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert listener.next()["method"] == "notifications/tools/list_changed"

    def test_with_nobody_listening_are_nothing(self, app: MRTRServer) -> None:
        app.notify_tools_changed()
        app.notify_resource_updated("doc://1")

    def test_go_through_the_fanout_that_the_server_was_given(self, serve: Serve) -> None:
        """Another one, behind the same two methods, reaches every replica."""
        published: list[Change] = []

        class Kept(InProcessFanout):
            def publish(self, change: Change) -> None:
                published.append(change)
                super().publish(change)

        kept: Fanout = Kept()
        app = MRTRServer("kept", keys=[bytes(32)], store=carrying(kept))
        other = MRTRServer("kept", keys=[bytes(32)], store=carrying(kept))
        with listening(serve(app), ALL) as listener:
            listener.next()
            other.notify_prompts_changed()
            assert listener.next()["method"] == "notifications/prompts/list_changed"
        assert published == [Change("prompts")]


class TestSilence:
    def test_is_broken_by_comments_so_that_proxies_leave_the_stream_open(
        self, app: MRTRServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "KEEP_ALIVE", 0.03)
        with listening(serve(app), ALL) as listener:
            listener.next()
            assert [listener.comment(), listener.comment()] == [":", ":"]
            app.notify_tools_changed()
            assert listener.next()["method"] == "notifications/tools/list_changed"
            assert listener.comment() == ":"

    def test_is_not_broken_before_the_acknowledgment(
        self, app: MRTRServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "KEEP_ALIVE", 0.01)
        wire = serve(app)
        message = modern("subscriptions/listen", {"notifications": ALL})
        with wire.client.stream(
            "POST", wire.url, content=json.dumps(message), headers=headers_for(message)
        ) as response:
            assert next(response.iter_lines()) == "event: message"

    def test_loses_no_change_that_comes_as_it_is_broken(
        self, app: MRTRServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "KEEP_ALIVE", 0.001)
        with listening(serve(app), {"resourceSubscriptions": [f"doc://{n}" for n in range(300)]}) as listener:
            listener.next()
            for number in range(300):
                app.notify_resource_updated(f"doc://{number}")
                assert listener.next()["params"]["uri"] == f"doc://{number}"


class TestListeners:
    """The conformance suite leaves streams open and unread until its process ends, and so do others."""

    def test_who_never_read_hold_each_change_once(self, app: MRTRServer, fanout: InProcessFanout) -> None:
        stuck = asyncio.Event()

        class Unread(Exchange):
            async def _send(self, message: Message) -> None:
                await super()._send(message)
                if b"list_changed" in message.get("body", b""):
                    await stuck.wait()  # the client has stopped reading

        async def scene() -> None:
            message = modern("subscriptions/listen", {"notifications": ALL})
            under_way = Unread(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            app.notify_tools_changed()
            await under_way.until(b"tools/list_changed")
            for _ in range(10_000):
                app.notify_tools_changed()
                app.notify_prompts_changed()
                app.notify_resource_updated("doc://nobody-asked")
            await asyncio.sleep(0.05)
            (listener,) = fanout._listeners
            assert len(listener._changes) == 2
            stuck.set()
            await under_way.until(b"prompts/list_changed")
            assert under_way.reply.body.count(b"tools/list_changed") == 2
            under_way.disconnect()
            await under_way.end()

        asyncio.run(scene())

    def test_who_never_read_leave_the_others_alone(
        self, app: MRTRServer, serve: Serve, fanout: InProcessFanout
    ) -> None:
        wire = serve(app)
        with ExitStack() as stack:
            for number in range(10):
                stack.enter_context(listening(wire, ALL, id=number))
            wait_until(lambda: listeners(fanout) == 10, "ten listeners")
            with listening(wire, ALL, id="reader") as reader:
                reader.next()
                for _ in range(20):
                    assert wire.call("change").text == "changed"
                    assert reader.next()["method"] == "notifications/tools/list_changed"
        wait_until(lambda: listeners(fanout) == 0, "all listeners to be gone")

    @pytest.mark.parametrize("http", ["h11", "httptools"])
    def test_who_vanish_are_forgotten(self, app: MRTRServer, serve: Serve, fanout: InProcessFanout, http: str) -> None:
        wire = serve(app, http=http)
        message = modern("subscriptions/listen", {"notifications": ALL})
        body = json.dumps(message).encode()
        head = [f"{name.decode()}: {value.decode()}" for name, value in headers_for(message)]
        head += ["host: x", f"content-length: {len(body)}"]
        connections = []
        for _ in range(5):
            connection = socket.create_connection(("127.0.0.1", int(wire.url.split(":")[2].split("/")[0])))
            connection.sendall("\r\n".join(["POST /mcp HTTP/1.1", *head, "", ""]).encode() + body)
            connections.append(connection)
        wait_until(lambda: listeners(fanout) == 5, "five listeners")
        for number, connection in enumerate(connections):
            if number % 2:  # a reset, as of a process that was killed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()
        wait_until(lambda: listeners(fanout) == 0, "all listeners to be forgotten")
        app.notify_tools_changed()
        assert wire.call("change").text == "changed"

    def test_who_vanish_in_the_middle_of_a_change_are_forgotten(
        self, app: MRTRServer, serve: Serve, fanout: InProcessFanout
    ) -> None:
        wire = serve(app)
        for _ in range(5):
            with listening(wire, ALL) as listener:
                listener.next()
                app.notify_tools_changed()
            app.notify_tools_changed()
        wait_until(lambda: listeners(fanout) == 0, "all listeners to be forgotten")

    def test_whose_loop_has_ended_are_forgotten(self, fanout: InProcessFanout) -> None:
        async def listen() -> None:
            fanout.subscribe(frozenset({Change("tools")}))

        asyncio.run(listen())
        assert listeners(fanout) == 1
        fanout.publish(Change("tools"))
        assert listeners(fanout) == 0
        fanout.publish(Change("tools"))

    def test_are_held_by_no_more_than_their_filter(self, fanout: InProcessFanout) -> None:
        async def scene() -> int:
            wanted = frozenset({Change("tools")})
            subscriptions = [fanout.subscribe(wanted) for _ in range(1000)]
            for _ in range(100):
                fanout.publish(Change("tools"))
            await asyncio.sleep(0)
            held = sum(sys.getsizeof(each._changes) for each in fanout._listeners)
            for subscription in subscriptions:
                subscription.close()
                subscription.close()  # safe to call twice
            return held // 1000

        assert asyncio.run(scene()) < 1000
        gc.collect()
        assert listeners(fanout) == 0


class TestEnding:
    """A server that ends a subscription says so, with the response to the request that opened it."""

    def test_at_the_end_of_the_lifespan_is_a_result(self, app: MRTRServer) -> None:
        async def scene() -> Reply:
            message = modern("subscriptions/listen", {"notifications": ALL}, id="sub")
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            await shut_down(app)
            reply = await under_way.end()
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left of it"
            return reply

        reply = asyncio.run(scene())
        assert reply.message == {
            "jsonrpc": "2.0",
            "id": "sub",
            "result": {
                "resultType": "complete",
                "_meta": {
                    SUBSCRIPTION: "sub",
                    PREFIX + "serverInfo": {"name": "changing", "version": "0.0.0"},
                },
            },
        }
        assert not list(message_problems("subscriptions/listen", reply.message))

    @pytest.mark.parametrize("how", ["drain", "shutdown"])
    def test_closes_the_subscription_without_waiting_for_it_to_notice(
        self, app: MRTRServer, fanout: InProcessFanout, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        monkeypatch.setattr(waiting, "CLOSE_WITHIN", 60.0)

        async def scene() -> Reply:
            message = modern("subscriptions/listen", {"notifications": ALL}, id="sub")
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            if how == "drain":
                app.drain()
            else:
                await shut_down(app)
            reply = await under_way.end()  # within its ten seconds
            assert listeners(fanout) == 0
            return reply

        assert asyncio.run(scene()).message["result"]["resultType"] == "complete"

    def test_tells_first_what_happened_before(self, app: MRTRServer) -> None:
        async def scene() -> Reply:
            message = modern("subscriptions/listen", {"notifications": ALL}, id="sub")
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            app.notify_tools_changed()
            await shut_down(app)
            return await under_way.end()

        _, change, last = asyncio.run(scene()).received
        assert change["method"] == "notifications/tools/list_changed"
        assert last["result"]["resultType"] == "complete"

    def test_by_the_client_is_answered_with_nothing(self, app: MRTRServer, fanout: InProcessFanout) -> None:
        async def scene() -> Exchange:
            message = modern("subscriptions/listen", {"notifications": ALL})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            under_way.disconnect()
            await under_way.end()
            return under_way

        assert len(asyncio.run(scene()).reply.received) == 1
        assert listeners(fanout) == 0

    def test_by_the_asgi_server_is_a_cancellation_like_any_other(
        self, app: MRTRServer, fanout: InProcessFanout
    ) -> None:
        async def scene() -> None:
            message = modern("subscriptions/listen", {"notifications": ALL})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            task = asyncio.create_task(under_way.end())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert listeners(fanout) == 0

        asyncio.run(scene())

    def test_leaves_the_application_ready_for_the_next_lifespan(self, app: MRTRServer) -> None:
        for _ in range(2):
            with in_thread(app, lifespan="on") as port:
                wire = Wire(f"http://127.0.0.1:{port}/mcp")
                with listening(wire, ALL) as listener:
                    listener.next()
                    app.notify_tools_changed()
                    assert listener.next()["method"] == "notifications/tools/list_changed"
                wire.close()

    def test_of_a_process_is_not_held_up_by_those_who_listen(self, tmp_path: Path) -> None:
        """However much time uvicorn was given for it."""
        arguments = ("--timeout-graceful-shutdown", str(10 * int(TIMEOUT)))
        with in_process("tests.support.apps:strict", *arguments, log=tmp_path / "log") as server, opened(server):
            server.stop()

    def test_of_a_process_that_was_given_no_time_is_not_held_up_either(self, tmp_path: Path) -> None:
        """As `uvicorn module:app` is, in a container that is told to stop."""
        with in_process("tests.support.apps:strict", log=tmp_path / "log") as server, opened(server) as connection:
            server.process.terminate()
            connection.settimeout(TIMEOUT)
            assert b'"resultType":"complete"' in connection.recv(65536)
            server.wait(TIMEOUT)

    def test_whatever_fanout_it_is_of(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even of one whose subscriptions take no notice of being closed."""
        monkeypatch.setattr(waiting, "CLOSE_WITHIN", 0.01)

        class Deaf:
            wanted = frozenset({Change("tools")})

            async def next(self) -> list[Change]:
                await asyncio.Event().wait()
                raise AssertionError

            def close(self) -> None:
                pass

        class DeafFanout(InProcessFanout):
            def subscribe(self, wanted: frozenset[Change]) -> Subscription:
                return Deaf()

        async def scene() -> Reply:
            app = MRTRServer("deaf", keys=[bytes(32)], store=carrying(DeafFanout()))
            message = modern("subscriptions/listen", {"notifications": ALL}, id="sub")
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            app.drain()
            return await under_way.end()

        assert asyncio.run(scene()).message["result"]["resultType"] == "complete"

    def test_of_a_draining_server_comes_at_once(self, app: MRTRServer) -> None:
        async def scene() -> Reply:
            app.drain()
            return await send(app, modern("subscriptions/listen", {"notifications": ALL}, id="sub"))

        reply = asyncio.run(scene())
        assert reply.headers["connection"] == "close"
        acknowledged, last = reply.received
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert last["result"]["resultType"] == "complete"


@contextmanager
def opened(server: Process) -> Iterator[socket.socket]:
    """Open a subscription on a raw socket, and read its acknowledgment."""
    message = modern("subscriptions/listen", {"notifications": ALL}, capabilities=EVERYTHING)
    body = json.dumps(message).encode()
    head = [f"{name.decode()}: {value.decode()}" for name, value in headers_for(message)]
    head += ["host: x", f"content-length: {len(body)}"]
    with closing(socket.create_connection(("127.0.0.1", server.port), TIMEOUT)) as connection:
        connection.sendall("\r\n".join(["POST /mcp HTTP/1.1", *head, "", ""]).encode() + body)
        received = b""
        while b"acknowledged" not in received:
            received += connection.recv(65536)
        yield connection


async def shut_down(app: MRTRServer) -> None:
    """Take an application through the end of a lifespan."""
    coming: asyncio.Queue[Message] = asyncio.Queue()
    for step in ("startup", "shutdown"):
        coming.put_nowait({"type": f"lifespan.{step}"})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, coming.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


class TestTasks:
    """What is listened to by id; what they are told is in tasks/test_changes.py and protocol/test_task_forms.py."""

    def test_need_a_client_that_takes_tasks(self, app: MRTRServer, serve: Serve) -> None:
        for wanted in ({"taskIds": ["a"]}, {**ALL, "taskIds": ["a"]}):
            reply = serve(app).modern("subscriptions/listen", {"notifications": wanted})
            assert (reply.status, reply.code) == (400, -32021)
            assert reply.error.data == {"requiredCapabilities": TASKS}

    def test_of_nobody_need_nothing(self, app: MRTRServer, serve: Serve) -> None:
        with listening(serve(app), {"taskIds": []}) as listener:
            assert listener.next()["params"]["notifications"] == {}

    @pytest.mark.parametrize("wrong", ["a", {"a": True}, [5], [None], [["a"]]], ids=str)
    def test_are_named_in_a_list_of_strings(self, app: MRTRServer, serve: Serve, wrong: Any) -> None:
        reply = serve(app).modern("subscriptions/listen", {"notifications": {"taskIds": wrong}}, capabilities=TASKS)
        assert (reply.status, reply.code) == (400, -32602)
        assert "taskIds" in reply.error.message

    @pytest.mark.parametrize("ids", [[str(number) for number in range(1001)], ["x" * 100_001]], ids=["many", "long"])
    def test_are_not_too_many(self, app: MRTRServer, serve: Serve, ids: list[str]) -> None:
        reply = serve(app).modern("subscriptions/listen", {"notifications": {"taskIds": ids}}, capabilities=TASKS)
        assert (reply.status, reply.code, reply.error.data["limit"]) == (400, -32602, "taskIds")
