"""The guides by task do what they say."""

from typing import Any

from mrtr_server.testing import Client, yes

from ..support.serving import ROOT, in_thread, wait_until
from .test_pages import blocks

LOGIN, CHOICES, LABELS, FILES, CANCEL = blocks(ROOT / "docs" / "guides.md", "python")


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code, "guide.py", "exec"), names)  # noqa: S102  a block of the page
    return names


def test_a_user_of_the_site_is_the_user_of_the_server() -> None:
    app = run(LOGIN)["app"]
    ann = Client(app, path="/tools/mcp", headers={"x-api-key": "ann-key"})
    assert ann.call("greet", answers={"confirm": yes}).text == "Hello, ann"
    stranger = Client(app, path="/tools/mcp")
    assert stranger.request("tools/list").result["tools"] == []
    assert "Unknown tool" in stranger.flow("greet").start().error.message
    flow = ann.flow("greet")
    flow.start()
    flow.headers = {}
    assert flow.answer(confirm=yes).error


def test_the_choices_stay_those_that_were_shown() -> None:
    names = run(CHOICES)
    flow = Client(names["app"]).flow("book", day="today")
    assert flow.start().asks["room"].schema["properties"]["name"]["enum"] == ["Rigi", "Säntis"]
    names["FREE"]["today"] = ["Pilatus"]
    assert flow.answer(room={"name": "Säntis"}).text == "Säntis is booked for today"
    assert Client(names["app"]).call("book", day="never").failure == "No room is free never."


def test_another_choice_is_asked_for_again() -> None:
    flow = Client(run(CHOICES)["app"]).flow("book", day="today")
    flow.start()
    assert flow.send({"room": {"name": "Pilatus"}}).needs_input


def test_labels_are_shown_and_values_returned() -> None:
    flow = Client(run(LABELS)["app"]).flow("book", city="Bern")
    fields = flow.start().asks["seat"].schema["properties"]
    assert fields["seat_class"]["title"] == "Class"
    assert [choice["title"] for choice in fields["seat_class"]["oneOf"]] == ["First", "Second"]
    assert fields["nights"]["title"] == "How many nights"
    assert flow.answer(seat={"seat_class": "1", "nights": 2}).text == "Class 1, 2 nights in Bern"


def test_a_result_has_files_and_images() -> None:
    client = Client(run(FILES)["app"])
    content = client.call("chart", year="2025").result["content"]
    assert [part["type"] for part in content] == ["text", "image", "resource", "resource_link"]
    assert client.read(content[3]["uri"]).result["contents"][0]["text"] == content[2]["resource"]["text"] == "3\n5\n8"


def test_a_dependency_learns_of_a_cancellation() -> None:
    names = run(CANCEL)
    assert Client(names["app"]).call("film", scenes=2).text == '["scene 0 by renderer 1","scene 1 by renderer 1"]'
    assert names["said"] == ["started"]
    with in_thread(names["app"]) as port:
        flow = Client(f"http://127.0.0.1:{port}/mcp", tasks=True).flow("film", scenes=10_000)
        flow.start()
        wait_until(lambda: names["said"] == ["started"] * 2, "the task to begin")
        flow.cancel()
        wait_until(lambda: names["said"] == ["started", "started", "stopped"], "the clean-up")
