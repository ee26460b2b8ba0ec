"""examples/deploy.py: an effect happens once in a flow, and not at all without the yes that it needs."""

from pathlib import Path

import pytest

from examples import deploy

from ..support.wire import Wire, accept, text_of
from .conftest import Start
from .pasting import needs_curl, replies

SHOP = {"service": "shop"}


@pytest.fixture(name="log", scope="session")
def _log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deploy") / "deploy.log"


@pytest.fixture(name="wire")
def _wire(start: Start, log: Path) -> Wire:
    log.write_text("")
    return start("deploy", DEPLOY_LOG=str(log))


def test_each_step_runs_once_and_the_second_gets_the_image_of_the_first(wire: Wire, log: Path) -> None:
    first = wire.call("deploy", SHOP)
    (built,) = log.read_text().splitlines()
    image = built.removeprefix("built ")
    asked = first.result["inputRequests"]["confirm"]["params"]
    assert asked["message"] == f"Deploy {image} to production?"
    assert asked["requestedSchema"]["properties"] == {
        "confirm": {"type": "boolean", "title": "Yes, do it", "description": "Nothing happens without this"}
    }
    assert log.read_text().splitlines() == [built]

    second = wire.call("deploy", SHOP, id=2, answers={"confirm": accept(confirm=True)}, state=first.state)
    assert second.text == f"{image} is in production."
    assert log.read_text().splitlines() == [built, f"rolled out {image}"]


@pytest.mark.parametrize("answer", [accept(confirm=False), {"action": "decline"}, {"action": "cancel"}], ids=str)
def test_without_a_yes_nothing_is_rolled_out(wire: Wire, log: Path, answer: dict[str, object]) -> None:
    state = wire.call("deploy", SHOP).state
    done = wire.call("deploy", SHOP, id=2, answers={"confirm": answer}, state=state)
    assert done.result["isError"] is True
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["built"]


def test_a_yes_to_a_question_that_nobody_has_seen_does_not_count(wire: Wire, log: Path) -> None:
    reply = wire.call("deploy", SHOP, answers={"confirm": accept(confirm=True)})
    assert reply.result["inputRequests"].keys() == {"confirm"}
    assert "rolled out" not in log.read_text()


def test_a_state_is_for_the_arguments_that_it_was_made_for(wire: Wire, log: Path) -> None:
    state = wire.call("deploy", SHOP).state
    reply = wire.call("deploy", {"service": "bank"}, id=2, answers={"confirm": accept(confirm=True)}, state=state)
    assert reply.code == -32602
    assert "rolled out" not in log.read_text()


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire, log: Path) -> None:
    asked, done = replies(deploy, wire.url)
    image = log.read_text().split()[1]
    assert asked["result"]["inputRequests"]["confirm"]["params"]["message"] == f"Deploy {image} to production?"
    assert text_of(done) == f"{image} is in production."
    assert log.read_text() == f"built {image}\nrolled out {image}\n"
