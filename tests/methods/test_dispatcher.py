"""One function serves each method; what is no method, and what brings a state where none is issued, is refused."""

import logging
from typing import Any

import pytest

from mrtr_server.errors import InvalidRequestState, UnknownMethod
from mrtr_server.methods.dispatcher import Dispatcher
from mrtr_server.methods.middleware import Method, Serve
from mrtr_server.protocol.messages import STATE_METHODS, Call, Complete, Outcome, Outlet

from ..support.methods import Notes, Rates, body

pytestmark = pytest.mark.anyio

SERVED = {
    "tools/call": "tools.call",
    "prompts/get": "prompts_and_resources.get",
    "resources/read": "prompts_and_resources.read",
    "tools/list": "lists.tools",
    "prompts/list": "lists.prompts",
    "resources/list": "lists.resources",
    "resources/templates/list": "lists.resource_templates",
    "completion/complete": "completions.complete",
    "server/discover": "discoverer.discover",
    "subscriptions/listen": "subscriptions.listen",
    "initialize": "discoverer.discover",
    "ping": "sessions.ping",
    "logging/setLevel": "sessions.set_level",
    "resources/subscribe": "sessions.subscribe",
    "resources/unsubscribe": "sessions.unsubscribe",
    "sessions/listen": "sessions.listen",
    **{f"tasks/{name}": f"tasks.{name}" for name in ("get", "list", "result", "update", "answer", "respond", "cancel")},
}
EXTENSIONS = {name: served for name, served in SERVED.items() if name.startswith("tasks/")}


class Naming:
    """Has every method, and each says which it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Method:
        async def serve(call: Call, outlet: Outlet) -> Outcome:
            return Complete({"served": f"{self._name}.{method}"})

        return serve


@pytest.fixture
def dispatcher() -> Dispatcher:
    names = {served.partition(".")[0] for name, served in SERVED.items() if name not in EXTENSIONS}
    extensions = {name: getattr(Naming("tasks"), served.partition(".")[2]) for name, served in EXTENSIONS.items()}
    parts: dict[str, Any] = {"rates": Rates(), "extensions": extensions, **{name: Naming(name) for name in names}}
    return Dispatcher(**parts)


@pytest.mark.parametrize("method", SERVED)
async def test_each_method_has_its_function(dispatcher: Dispatcher, method: str) -> None:
    assert body(await dispatcher.dispatch(Call(method, {}), Notes())) == {"served": SERVED[method]}


def test_there_is_no_other_method(dispatcher: Dispatcher) -> None:
    assert dispatcher._methods.keys() == SERVED.keys()
    for method in ("", "tools", "tools/Call", "nonsense", "x" * 10_000):
        with pytest.raises(UnknownMethod) as refusal:
            dispatcher.dispatch(Call(method, {}), Notes())
        assert str(refusal.value) == f"Method not found: {method[:200]}"


@pytest.mark.parametrize("method", SERVED)
async def test_a_state_is_served_where_one_may_have_been_issued(
    dispatcher: Dispatcher, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call(method, {}, state="a state")
    if method in STATE_METHODS:
        assert body(await dispatcher.dispatch(call, Notes())) == {"served": SERVED[method]}
        return
    with pytest.raises(InvalidRequestState):
        dispatcher.dispatch(call, Notes())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{method}: refused a requestState: this method issues none" in caplog.text


async def test_middleware_is_around_every_method_but_the_one_that_no_message_names(dispatcher: Dispatcher) -> None:
    seen: list[str] = []

    def around(serve: Serve) -> Serve:
        async def noting(call: Call, outlet: Outlet) -> Any:
            seen.append(call.method)
            return await serve(call, outlet)

        return noting

    dispatcher.serve_within([around])
    for method in SERVED:
        assert body(await dispatcher.dispatch(Call(method, {}), Notes())) == {"served": SERVED[method]}
    assert seen == [method for method in SERVED if method != "sessions/listen"]
