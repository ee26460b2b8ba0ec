"""Who is calling: tokens, challenges, and that what belongs to one user is worth nothing to another."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
    UnauthenticatedUser,
)
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from examples import secured
from mrtr_server import BearerTokens, Context, MRTRServer, Principal, SetupError
from mrtr_server.auth.fixed_tokens import TokenUser
from mrtr_server.errors import InvalidRequestState
from mrtr_server.protocol.callers import principal_of

from ..conftest import Serve
from ..support.direct import send
from ..support.wire import JSON, Reply, Wire, accept, modern, request

ALICE, BOB = {"Authorization": "Bearer alice-token"}, {"Authorization": "Bearer bob-token"}
TOKENS = BearerTokens({"alice-token": "alice", "bob-token": "bob", "alices-other-token": "alice"})


def with_tool(app: MRTRServer) -> MRTRServer:
    """Add a tool to an application that asks before it says who calls."""

    @app.tool
    async def who(ctx: Context) -> str:
        await ctx.confirm("Say who you are?")
        return "nobody" if ctx.principal is None else ctx.principal.subject

    return app


@pytest.fixture
def wire(serve: Serve) -> Wire:
    return serve(with_tool(MRTRServer("authentic", keys=[bytes(32)], auth=TOKENS)))


def who(wire: Wire, headers: Mapping[str, str], state: str | None = None) -> Reply:
    """Send a round of the call, with the answer if there is a state."""
    params: JSON = {"name": "who"}
    if state is not None:
        params |= {"inputResponses": {"confirm": accept(confirm=True)}, "requestState": state}
    return wire.post(modern("tools/call", params), headers)


class TestTokens:
    def test_say_who_calls(self, wire: Wire) -> None:
        assert who(wire, ALICE, who(wire, ALICE).state).text == "alice"
        assert who(wire, BOB, who(wire, BOB).state).text == "bob"

    @pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
    def test_come_with_a_scheme_in_any_case(self, wire: Wire, scheme: str) -> None:
        assert who(wire, {"Authorization": f"{scheme}alice-token"}).status == 200

    @pytest.mark.parametrize("dialect", ["modern", "draft"])
    def test_that_are_missing_are_challenged(self, wire: Wire, dialect: str) -> None:
        message = modern("tools/list") if dialect == "modern" else request("tools/list")
        reply = wire.draft(message)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == 'Bearer realm="mcp"'
        assert b"\n" not in reply.body

    @pytest.mark.parametrize(
        "header",
        [
            "Bearer nobodys-token",
            "Bearer",
            "Basic YWxpY2U6eA==",
            "Basic alice-token",
            "Token alice-token",
            "Bearers alice-token",
            "alice-token",
            "",
            "Bearer alice-token x",
        ],
    )
    def test_that_are_nobodys_are_challenged_as_invalid(self, wire: Wire, header: str) -> None:
        message = json.dumps(request("tools/list")).encode()
        reply = wire.send(message, {"Content-Type": "application/json", "Authorization": header})
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == 'Bearer realm="mcp", error="invalid_token"'

    def test_may_hold_any_bytes_and_are_challenged_then(self, wire: Wire) -> None:
        header = [("Content-Type", "application/json"), ("Authorization", b"Bearer \xff\xfe")]
        response = wire.client.post(wire.url, content=b"{}", headers=header)  # type: ignore[arg-type]
        assert response.status_code == 401

    def test_are_asked_for_before_the_body_is_read(self, wire: Wire) -> None:
        assert wire.send(b"not json", {"Content-Type": "application/json"}).status == 401
        assert wire.send(b"", method="GET").status == 401

    def test_that_are_missing_let_nobody_listen_or_discover(self, wire: Wire) -> None:
        for method in ("server/discover", "subscriptions/listen"):
            message = json.dumps(modern(method, {"notifications": {}})).encode()
            assert wire.send(message, {"Content-Type": "application/json"}).status == 401

    @pytest.mark.parametrize("users", [{"": "alice"}, {"token": ""}, {"a": "alice", "": ""}])
    def test_may_not_be_empty_nor_stand_for_nobody(self, users: dict[str, str]) -> None:
        with pytest.raises(SetupError, match="neither may be empty"):
            BearerTokens(users)

    def test_give_their_scopes_to_whoever_asks(self) -> None:
        scope: JSON = {"type": "http", "headers": [(b"authorization", b"Bearer t")]}
        found = asyncio.run(BearerTokens({"t": "alice"}, scopes=["read", "write"]).authenticate(HTTPConnection(scope)))
        assert found is not None
        credentials, user = found
        assert (credentials.scopes, user.identity, user.display_name) == (["read", "write"], "alice", "alice")
        assert user.is_authenticated


class TestStates:
    """A `requestState` opens for the user whom it was made for."""

    def test_of_one_user_are_refused_for_another_with_the_frozen_error(self, wire: Wire) -> None:
        state = who(wire, ALICE).state
        reply = who(wire, BOB, state)
        assert (reply.status, reply.code) == (400, -32602)
        assert reply.message["error"] == {"code": -32602, "message": InvalidRequestState.MESSAGE}
        assert reply.body == who(wire, BOB, "forged").body, "bob learns nothing of whose it was"
        assert who(wire, ALICE, state).text == "alice"

    def test_follow_the_user_not_the_token(self, wire: Wire) -> None:
        state = who(wire, ALICE).state
        assert who(wire, {"Authorization": "Bearer alices-other-token"}, state).text == "alice"

    def test_of_a_user_are_refused_for_nobody_and_the_other_way_round(self, serve: Serve) -> None:
        """The same server, behind an authentication that lets anybody in."""
        site = Starlette(
            routes=[Mount("/", with_tool(MRTRServer("open", keys=[bytes(32)])))],
            middleware=[Middleware(AuthenticationMiddleware, backend=TOKENS)],
        )
        wire = serve(site)
        of_alice, of_nobody = who(wire, ALICE).state, who(wire, {}).state
        assert who(wire, {}, of_alice).code == -32602
        assert who(wire, ALICE, of_nobody).code == -32602
        assert who(wire, {}, of_nobody).text == "nobody"
        assert who(wire, ALICE, of_alice).text == "alice"

    def test_are_logged_for_the_operator_with_the_reason(self, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
        who(wire, BOB, who(wire, ALICE).state)
        assert "belongs to another principal" in caplog.text
        assert "alice" not in caplog.text

    @pytest.mark.parametrize("part", ["subject", "issuer", "client_id"])
    def test_belong_to_subject_issuer_and_client_together(self, part: str) -> None:
        app = with_tool(MRTRServer("parts", keys=[bytes(32)]))
        one = {"subject": "s", "issuer": "i", "client_id": "c"}

        def call(user: JSON, state: str | None = None) -> Reply:
            params: JSON = {"name": "who"}
            if state:
                params |= {"inputResponses": {"confirm": accept(confirm=True)}, "requestState": state}
            return asyncio.run(send(app, modern("tools/call", params), user=Claims(**user)))

        state = call(one).state
        assert call(one, state).text == "s"
        assert call({**one, part: "other"}, state).code == -32602
        assert call({**one, part: ""} if part != "subject" else {**one, part: "s "}, state).code == -32602

    def test_do_not_mix_parts_up(self) -> None:
        """`("ab", "c")` is not `("a", "bc")`, and no part stands for another."""
        app = with_tool(MRTRServer("parts", keys=[bytes(32)]))
        users = [("ab", "c", ""), ("a", "bc", ""), ("c", "ab", ""), ("ab", "", "c"), ("abc", "", "")]
        states = []
        for subject, issuer, client in users:
            message = modern("tools/call", {"name": "who"})
            states.append(asyncio.run(send(app, message, user=Claims(subject, issuer, client))).state)
        for number, user in enumerate(users):
            for other, state in enumerate(states):
                answered = {"inputResponses": {"confirm": accept(confirm=True)}, "requestState": state}
                message = modern("tools/call", {"name": "who", **answered})
                reply = asyncio.run(send(app, message, user=Claims(*user)))
                assert ("result" in reply.message) is (number == other)


class Claims(BaseUser):
    """A user as a JWT names them."""

    tenant = ""

    def __init__(self, subject: str, issuer: str, client_id: str) -> None:
        self._subject, self.issuer, self.client_id = subject, issuer, client_id

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return "a name that many share"

    @property
    def identity(self) -> str:
        return self._subject


class Nameless(BaseUser):
    """A user with nothing but a name to show, as in Starlette's own documentation."""

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return "Alice A."


class Backend(AuthenticationBackend):
    """Takes everybody for the same user.

    Args:
        user: that user; None for a backend that knows nobody.
    """

    def __init__(self, user: BaseUser | None) -> None:
        self._user = user

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        return None if self._user is None else (AuthCredentials(), self._user)


class TestUsers:
    """The user is whoever Starlette's authentication says, inside the server or around its mount."""

    @pytest.mark.parametrize("where", ["within", "around"])
    def test_of_any_backend_are_taken(self, serve: Serve, where: str) -> None:
        user = Claims("alice", "https://issuer.example", "app")
        if where == "within":
            app: Any = with_tool(MRTRServer("users", keys=[bytes(32)], auth=Backend(user)))
        else:
            around = [Middleware(AuthenticationMiddleware, backend=Backend(user))]
            mounted = with_tool(MRTRServer("users", keys=[bytes(32)]))
            app = Starlette(routes=[Mount("/", mounted)], middleware=around)
        wire = serve(app)
        assert who(wire, {}, who(wire, {}).state).text == "alice"

    def test_of_middleware_of_the_server_are_taken(self, serve: Serve) -> None:
        middleware = [Middleware(AuthenticationMiddleware, backend=TOKENS)]
        wire = serve(with_tool(MRTRServer("users", keys=[bytes(32)], middleware=middleware)))
        assert who(wire, BOB, who(wire, BOB).state).text == "bob"

    def test_that_are_not_known_get_a_401_where_the_server_authenticates(self, serve: Serve) -> None:
        wire = serve(MRTRServer("nobody", keys=[bytes(32)], auth=Backend(None)))
        assert wire.draft(request("tools/list")).status == 401

    def test_that_are_not_known_are_nobody_where_it_does_not(self, serve: Serve) -> None:
        wire = serve(with_tool(MRTRServer("nobody", keys=[bytes(32)])))
        assert who(wire, ALICE, who(wire, {}).state).text == "nobody", "nobody looks at the header"

    def test_whom_a_backend_refuses_get_a_401_without_its_reasons(self, serve: Serve) -> None:
        class Strict(AuthenticationBackend):
            async def authenticate(self, conn: HTTPConnection) -> None:
                raise AuthenticationError("the key of https://issuer.internal is 42")

        reply = serve(MRTRServer("strict", keys=[bytes(32)], auth=Strict())).draft(request("tools/list"))
        assert reply.status == 401
        assert b"42" not in reply.body
        assert "42" not in reply.headers["www-authenticate"]

    def test_with_an_empty_identity_are_nobody(self, serve: Serve) -> None:
        wire = serve(with_tool(MRTRServer("nameless", keys=[bytes(32)], auth=Backend(TokenUser("")))))
        assert who(wire, {}, who(wire, {}).state).text == "nobody"

    def test_without_an_identity_are_a_fault_of_the_operator(
        self, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A display name is no identity, since many may share it; so their states could be bound to nobody."""
        wire = serve(with_tool(MRTRServer("nameless", keys=[bytes(32)], auth=Backend(Nameless()))))
        reply = who(wire, {})
        assert (reply.status, reply.code) == (500, -32603)
        assert "Nameless is authenticated but has no identity" in caplog.text
        assert "Alice" not in reply.body.decode()

    def test_reach_the_handler_as_they_are(self, serve: Serve) -> None:
        app = MRTRServer("whole", keys=[bytes(32)], auth=Backend(Claims("alice", "i", "c")))

        @app.tool
        def whole(ctx: Context) -> list[bool]:
            return [isinstance(ctx.user, Claims), ctx.principal == Principal("alice", "i", "c")]

        assert serve(app).call("whole").result["structuredContent"] == [True, True]


class TestPrincipals:
    def test_come_from_the_identity(self) -> None:
        assert principal_of(TokenUser("alice")) == Principal("alice")
        assert principal_of(Claims("s", "i", "c")) == Principal("s", "i", "c")

    def test_have_the_tenant_of_a_user_who_has_one_and_stay_who_they_are(self) -> None:
        user = Claims("s", "i", "c")
        user.tenant = "acme"
        principal = principal_of(user)
        assert principal is not None
        assert (principal.tenant, principal) == ("acme", Principal("s", "i", "c"))

    @pytest.mark.parametrize(
        "user", [None, UnauthenticatedUser(), TokenUser(""), object()], ids=lambda user: type(user).__name__
    )
    def test_are_none_for_nobody(self, user: object) -> None:
        assert principal_of(user) is None

    def test_are_refused_for_a_user_who_could_not_be_told_from_others(self) -> None:
        with pytest.raises(SetupError, match="Nameless is authenticated but has no identity"):
            principal_of(Nameless())

    def test_take_an_identity_that_is_no_string_as_one(self) -> None:
        class Numbered(Claims):
            identity = 42  # type: ignore[assignment]

        assert principal_of(Numbered("", "", "")) == Principal("42")


class TestTheExample:
    """`examples/secured.py`: a flow belongs to the one who began it."""

    def test_books_in_the_name_of_the_caller_alone(self, serve: Serve) -> None:
        wire = serve(secured.app)
        params: JSON = {"name": "book_room", "arguments": {"day": "Friday"}}
        state = wire.post(modern("tools/call", params), ALICE).state
        answered = {**params, "inputResponses": {"party": accept(people=4)}, "requestState": state}
        assert wire.post(modern("tools/call", answered), BOB).code == -32602
        booked = wire.post(modern("tools/call", answered), ALICE)
        assert booked.text == "Booked for alice: a room for 4 on Friday."
