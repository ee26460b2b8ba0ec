"""Who a task belongs to: its user, its scopes, and whether it may go on."""

import json
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from mrtr_server import Caller, Context, KeyRing, Limits, MRTRServer, Principal, Task, TaskRow
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.callers import RecordedUser, dump_user, load_user
from mrtr_server.protocol.messages import Call
from mrtr_server.tasks.sealing import RowBinding, SealedTasks, _dump_call

from ..conftest import Serve
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.wire import JSON, TASKS, Reply, Wire, accept, modern, text_of

ABLE: JSON = {"elicitation": {}, **TASKS}


class Member(BaseUser):
    """A user with more to them than a task keeps."""

    email = "ann@example.com"

    def __init__(self, identity: Any, issuer: str = "https://id.example", client_id: str = "app") -> None:
        self._identity = identity
        self.issuer = issuer
        self.client_id = client_id

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return f"Member {self._identity}"

    @property
    def identity(self) -> Any:
        return self._identity


class Tokens(AuthenticationBackend):
    """Takes `user:scope,scope` for a token."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        token = conn.headers.get("authorization")
        if token is None:
            return None
        name, _, scopes = token.partition(":")
        return AuthCredentials(scopes.split(",")), Member(int(name) if name.isdigit() else name)


def by(token: str) -> dict[str, str]:
    return {"Authorization": token}


def seen(ctx: Context) -> JSON:
    """What the same code sees of its caller, wherever it runs."""
    user = ctx.user
    return {
        "identity": user.identity,
        "name": user.display_name,
        "issuer": user.issuer,
        "client": user.client_id,
        "known": user.is_authenticated,
        "scopes": sorted(ctx.scopes),
        "principal": ctx.principal == Principal(str(user.identity), user.issuer, user.client_id),
    }


def make(**options: Any) -> MRTRServer:
    app = MRTRServer("callers", keys=[bytes(32)], auth=Tokens(), **options)

    @app.tool(task=Task("optional", poll=0.05, rounds_first=True))
    async def both(ctx: Context) -> list[JSON]:
        before = seen(ctx)
        await ctx.background()
        await ctx.elicit("Go on?", Login)
        return [before, seen(ctx)]

    return app


def start(wire: Wire, tool: str, headers: Mapping[str, str]) -> str:
    return str(wire.post(modern("tools/call", {"name": tool}, capabilities=ABLE), headers).result["taskId"])


def get(wire: Wire, task: str, headers: Mapping[str, str]) -> Reply:
    return wire.post(modern("tasks/get", {"taskId": task}, capabilities=ABLE), headers)


def until(wire: Wire, task: str, headers: Mapping[str, str], *statuses: str) -> JSON:
    deadline = time.monotonic() + TIMEOUT
    while (found := get(wire, task, headers).raw_result)["status"] not in statuses:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def answer(wire: Wire, task: str, headers: Mapping[str, str]) -> None:
    answers = {"login": accept(name="yes")}
    wire.post(modern("tasks/update", {"taskId": task, "inputResponses": answers}, capabilities=ABLE), headers)


class TestTheUser:
    @pytest.mark.parametrize("name", ["ann", "42"])
    def test_is_the_same_in_rounds_and_in_tasks(self, serve: Serve, name: str) -> None:
        app = MRTRServer("callers", keys=[bytes(32)], auth=Tokens())
        app.tool(name="round")(seen)
        app.tool(name="task", task=Task("required", poll=0.05))(seen)
        wire, headers = serve(app), by(f"{name}:read,write")
        in_a_round = wire.post(modern("tools/call", {"name": "round"}), headers).structured
        in_a_task = until(wire, start(wire, "task", headers), headers, "completed")["result"]["structuredContent"]
        assert in_a_task == in_a_round
        assert in_a_round == {
            "identity": 42 if name == "42" else "ann",
            "name": f"Member {name}",
            "issuer": "https://id.example",
            "client": "app",
            "known": True,
            "scopes": ["read", "write"],
            "principal": True,
        }

    def test_is_nobody_in_both_where_nobody_authenticates(self, serve: Serve) -> None:
        def user(ctx: Context) -> list[bool]:
            return [ctx.user is None, ctx.principal is None, ctx.scopes == frozenset()]

        app = MRTRServer("open", keys=[bytes(32)])
        app.tool(name="round")(user)
        app.tool(name="task", task=Task("required", poll=0.05))(user)
        wire = serve(app)
        assert wire.call("round").structured == [True, True, True]
        done = until(wire, start(wire, "task", {}), {}, "completed")
        assert done["result"]["structuredContent"] == [True, True, True]

    def test_is_not_authenticated_in_both_where_authentication_lets_anybody_in(self, serve: Serve) -> None:
        def user(ctx: Context) -> list[bool]:
            return [ctx.user.is_authenticated, ctx.principal is None]

        app = MRTRServer("open", keys=[bytes(32)])
        app.tool(name="round")(user)
        app.tool(name="task", task=Task("required", poll=0.05))(user)
        around = [Middleware(AuthenticationMiddleware, backend=Tokens())]
        wire = serve(Starlette(routes=[Mount("/", app)], middleware=around))
        assert wire.call("round").structured == [False, True]
        done = until(wire, start(wire, "task", {}), {}, "completed")
        assert done["result"]["structuredContent"] == [False, True]

    def test_says_what_a_task_does_not_keep_of_it(self) -> None:
        user: Any = load_user(dump_user(Member("ann")))
        assert isinstance(user, RecordedUser)
        with pytest.raises(AttributeError, match="A task keeps no 'email' of its user"):
            user.email  # noqa: B018
        assert not hasattr(user, "_email")
        assert repr(user) == "RecordedUser('ann')"

    def test_who_has_no_identity_has_none_in_a_task_either(self) -> None:
        class Anybody(UnauthenticatedUser):
            @property
            def identity(self) -> str:
                raise NotImplementedError

        for original in (UnauthenticatedUser(), Anybody()):
            kept = load_user(dump_user(original))
            assert kept is not None
            assert (kept.is_authenticated, kept.display_name) == (False, "")
        assert kept is not None
        with pytest.raises(NotImplementedError):
            kept.identity  # noqa: B018

    def test_whose_identity_is_an_object_is_named_by_its_text(self) -> None:
        number = UUID(int=7)
        kept = load_user(dump_user(Member(number)))
        assert kept is not None
        assert kept.identity == str(number)

    def test_of_a_task_of_an_older_release_is_named_by_its_principal(self) -> None:
        who = Principal("ann", "https://id.example", "app")
        written = json.loads(_dump_call(Call("tools/call", {}, "x", principal=who, user=Member("ann")), "shop"))
        del written["user"], written["scopes"], written["audience"]
        sealed = SealedTasks(KeyRing([bytes(32)]), Limits())
        binding = RowBinding("id", "owner")
        old = sealed._seal(binding, "call", json.dumps(written).encode())
        row = TaskRow(
            id="id",
            owner="owner",
            name="x",
            status="working",
            message="",
            created=0.0,
            updated=0.0,
            ttl=1.0,
            poll=1.0,
            deadline=1.0,
            expires=1.0,
            call=old,
            journal=sealed.seal_journal(binding, Journal(0.0), 0.0),
        )
        call = sealed.unseal_call(row)
        assert (call.user.identity, call.user.issuer, call.user.client_id) == ("ann", "https://id.example", "app")
        assert call.user.is_authenticated
        assert call.scopes == frozenset()


class TestScopes:
    def test_in_a_task_are_those_of_the_request_that_created_it(self, serve: Serve) -> None:
        """Whoever answers with less, or more, changes nothing."""
        wire = serve(make())
        admin, reader = by("ann:admin,read"), by("ann:read")
        task = start(wire, "both", admin)
        until(wire, task, reader, "input_required")
        answer(wire, task, reader)
        rounds, background = until(wire, task, admin, "completed")["result"]["structuredContent"]
        assert rounds["scopes"] == background["scopes"] == ["admin", "read"]

    def test_in_a_round_are_those_of_its_own_request(self, serve: Serve) -> None:
        app = MRTRServer("callers", keys=[bytes(32)], auth=Tokens())

        @app.tool
        async def mine(ctx: Context) -> list[str]:
            await ctx.elicit("Go on?", Login)
            return sorted(ctx.scopes)

        wire = serve(app)
        state = wire.post(modern("tools/call", {"name": "mine"}), by("ann:admin")).state
        retry = {"name": "mine", "requestState": state, "inputResponses": {"login": accept(name="x")}}
        assert wire.post(modern("tools/call", retry), by("ann:read")).structured == ["read"]


class Directory:
    """A hook whose answers change.

    Args:
        members: who may.
    """

    def __init__(self, *members: str) -> None:
        self.members = set(members)
        self.away = False
        self.asked: list[Caller] = []

    async def __call__(self, caller: Caller, name: str) -> bool:
        self.asked.append(caller)
        if self.away:
            raise ConnectionError("away")
        return caller.user.identity in self.members


def with_effect(directory: Directory, effects: list[str]) -> MRTRServer:
    app = MRTRServer("effects", keys=[bytes(32)], auth=Tokens())

    @app.tool(task=Task("required", poll=0.05), authorize=directory)
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Pay?", Login)
        effects.append("paid")
        return "paid"

    return app


class TestALaterRound:
    def test_is_asked_about_with_the_caller_of_the_request(self, serve: Serve) -> None:
        directory, effects = Directory("ann"), list[str]()
        wire, ann = serve(with_effect(directory, effects)), by("ann:admin")
        task = start(wire, "pay", ann)
        until(wire, task, ann, "input_required")
        answer(wire, task, ann)
        assert text_of(until(wire, task, ann, "completed")) == "paid"
        assert len(directory.asked) == 3, "the call, and two rounds of the task"
        assert {(each.user.identity, each.scopes) for each in directory.asked} == {("ann", frozenset({"admin"}))}

    def test_is_not_run_for_who_may_not_any_more(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        """The task fails as a call of a tool does that is not there; who began it may see that."""
        directory, effects = Directory("ann"), list[str]()
        wire, ann = serve(with_effect(directory, effects)), by("ann:admin")
        task = start(wire, "pay", ann)
        until(wire, task, ann, "input_required")
        directory.members.clear()
        answer(wire, task, ann)
        failed = until(wire, task, ann, "failed")
        assert failed["error"] == {"code": -32602, "message": "Unknown tool: pay", "data": {"name": "pay"}}
        assert (
            wire.post(modern("tools/call", {"name": "pay"}, capabilities=ABLE), ann).message["error"] == failed["error"]
        )
        assert effects == []
        assert "A task of 'pay' has failed: authorize= refuses its caller" in caplog.text

    def test_waits_while_the_hook_fails(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        """Nothing is run on a guess, and nothing is lost for good."""
        directory, effects = Directory("ann"), list[str]()
        wire, ann = serve(with_effect(directory, effects)), by("ann:admin")
        task = start(wire, "pay", ann)
        until(wire, task, ann, "input_required")
        directory.away, asked = True, len(directory.asked)
        answer(wire, task, ann)
        deadline = time.monotonic() + TIMEOUT
        while len(directory.asked) < asked + 2:  # asked, and asked again
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert get(wire, task, ann).result["status"] == "working"
        assert effects == []
        line = "A task of 'pay' can't continue now: 'authorize= failed with ConnectionError'"
        assert [record.getMessage() for record in caplog.records].count(line) == 1  # however often it is asked
        directory.away = False
        until(wire, task, ann, "completed")
        assert effects == ["paid"]
