"""examples/secured.py: no token, no service; and a flow goes on only for the one who began it."""

import pytest

from examples import secured

from ..support.wire import ACCEPT, Reply, Wire, accept, mirrored, modern, text_of
from .conftest import Start
from .pasting import needs_curl, replies

ALICE, BOB = "Bearer alice-token", "Bearer bob-token"
FOUR = {"party": accept(people=4)}


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("secured")


def book(wire: Wire, authorization: str, **more: object) -> Reply:
    params = {"name": "book_room", "arguments": {"day": "Friday"}, **more}
    return wire.post(modern("tools/call", params), {"Authorization": authorization})


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        (None, None),
        ("Bearer mallory-token", "invalid_token"),
        ("Bearer", "invalid_token"),
        ("Basic YWxpY2U6", "invalid_token"),
    ],
)
def test_without_a_good_token_there_is_a_challenge_and_no_service(
    wire: Wire, authorization: str | None, error: str | None
) -> None:
    message = modern("tools/call", {"name": "book_room", "arguments": {"day": "Friday"}})
    headers = {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
    response = wire.client.post(
        wire.url, json=message, headers=headers | ({"Authorization": authorization} if authorization else {})
    )
    assert response.status_code == 401
    challenge = response.headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer ")
    assert ("error=" in challenge) == (error is not None)
    assert error is None or error in challenge


@pytest.mark.parametrize(("authorization", "name"), [(ALICE, "alice"), (BOB, "bob")])
def test_the_one_who_began_a_flow_goes_on_with_it(wire: Wire, authorization: str, name: str) -> None:
    asked = book(wire, authorization)
    assert asked.result["inputRequests"]["party"]["params"]["message"] == "How many people will meet on Friday?"
    done = book(wire, authorization, inputResponses=FOUR, requestState=asked.state)
    assert done.text == f"Booked for {name}: a room for 4 on Friday."


def test_nobody_else_can_go_on_with_it_and_nobody_learns_why(wire: Wire) -> None:
    state = book(wire, ALICE).state
    stolen = book(wire, BOB, inputResponses=FOUR, requestState=state)
    forged = book(wire, BOB, inputResponses=FOUR, requestState="forged")
    assert stolen.code == -32602
    assert (stolen.status, stolen.error) == (forged.status, forged.error)
    assert book(wire, ALICE, inputResponses=FOUR, requestState=state).text.startswith("Booked for alice")


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    asked, done = replies(secured, wire.url)
    assert asked["result"]["inputRequests"].keys() == {"party"}
    assert text_of(done) == "Booked for alice: a room for 4 on Friday."
