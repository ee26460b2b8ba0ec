"""Whatever a client of a version with a handshake is sent fits the schema of that version, and has nothing more."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from mrtr_server import (
    Annotations,
    AudioContent,
    Completion,
    Context,
    EmbeddedResource,
    Icon,
    ImageContent,
    MRTRServer,
    PromptResult,
    ResourceContents,
    ResourceLink,
    ServerInfo,
    TextContent,
    ToolAnnotations,
    ToolError,
    ToolResult,
)

from ..support.handshake import JSON, NEWEST, OLDER, Handshake, check_message
from ..support.models import Login
from ..support.wire import request, text_of
from .conftest import Connect

EVERY = [NEWEST, *OLDER]
META = {"example.com/kept": True}
HINTS = Annotations(audience=["user"], priority=0.5, last_modified="2025-11-25T12:00:00Z")
ICONS = [Icon(src="https://example.com/icon.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
ENRICHED: dict[str, Any] = {"title": "With a title", "icons": ICONS, "meta": META}


class Weather(BaseModel):
    """What a tool returns."""

    degrees: Annotated[float, Field(title="Degrees")]


def everything() -> list[Any]:
    """Return one content block of each kind, with all that it may have."""
    given: dict[str, Any] = {"annotations": HINTS, "meta": META}
    held = ResourceContents(uri="notes://1", mime_type="text/plain", text="a note", meta=META)
    return [
        TextContent(text="text", **given),
        ImageContent(data=b"image", **given),
        AudioContent(data=b"audio", **given),
        EmbeddedResource(resource=held, **given),
        ResourceLink(uri="notes://1", name="note", title="A note", size=6, icons=ICONS, **given),
    ]


def enriched(app: MRTRServer) -> MRTRServer:
    """Register what has every field that a version may have."""
    hints = ToolAnnotations(title="Forecast", read_only_hint=True, open_world_hint=False)

    @app.tool(annotations=hints, task="optional", **ENRICHED)
    def forecast(city: Annotated[str, Field(title="City")] = "Lisbon") -> Weather:
        """Say how warm it will be."""
        return Weather(degrees=21.5)

    @app.tool
    def number() -> int:
        """Return what is no object."""
        return 7

    @app.tool
    def blocks() -> ToolResult:
        """Return every kind of content."""
        return ToolResult(content=everything(), structured_content={"some": 1}, meta=META)

    @app.tool
    def fail() -> str:
        """Fail, for the model."""
        raise ToolError("It failed")

    @app.tool
    async def notes(ctx: Context) -> str:
        """Tell of progress, and log."""
        await ctx.progress(1, 2, "half")
        await ctx.log({"step": 1}, level="warning", logger="notes")
        app.notify_tools_changed()
        app.notify_prompts_changed()
        app.notify_resources_changed()
        app.notify_resource_updated("notes://1")
        return "done"

    @app.tool
    async def greet(ctx: Context) -> str:
        """Ask for a name."""
        return (await ctx.elicit("Who?", Login)).name

    @app.prompt(**ENRICHED)
    def review(code: Annotated[str, Field(title="Code", description="to review")]) -> PromptResult:
        """Review code."""
        return PromptResult(messages=[f"Review {code}", *everything()], description="a review", meta=META)

    @app.completion("code", prompt="review")
    def codes(value: str) -> Completion:
        return Completion(values=[f"{value}1"], total=1, has_more=False)

    @app.resource("notes://1", size=6, mime_type="text/plain", annotations=HINTS, **ENRICHED)
    def note() -> ResourceContents:
        """Read the note."""
        return ResourceContents(text="a note", mime_type="text/plain", meta=META)

    @app.resource("notes://{name}/blob", annotations=HINTS, **ENRICHED)
    def blob(name: str) -> bytes:
        """Read a note as bytes."""
        return name.encode()

    return app


@pytest.fixture(params=EVERY)
def client(request: pytest.FixtureRequest, connect: Connect) -> Handshake:
    """A client of each version that has begun; each of its replies is checked against the schema of its version."""
    info = ServerInfo(title="Notes", description="Keeps notes", website_url="https://example.com", icons=ICONS)
    app = {"info": info, "instructions": "Read the notes"}
    return connect(begin=False, register=enriched, app=app, version=request.param)


class TestResults:
    """`Handshake` checks each result: see `check`."""

    def test_of_initialize(self, client: Handshake) -> None:
        begun = client.begin()
        assert begun["instructions"] == "Read the notes"
        assert ("completions" in begun["capabilities"]) == (client.version != "2024-11-05")

    @pytest.mark.parametrize("listed", ["tools", "prompts", "resources", "resources/templates"])
    def test_of_lists(self, client: Handshake, listed: str) -> None:
        client.begin()
        result = client.send(f"{listed}/list").result
        entries = result["resourceTemplates" if "/" in listed else listed]
        (full,) = [each for each in entries if each["name"] in ("forecast", "review", "note", "blob")]
        assert full["description"]
        assert ("title" in full) == (client.version >= "2025-06-18")
        assert ("icons" in full) == (client.version == NEWEST)
        assert ("_meta" in full) == (client.version >= "2025-06-18")

    def test_of_tools(self, client: Handshake) -> None:
        client.begin()
        assert client.call("forecast").result["content"]
        assert client.call("number").result["content"][0]["text"] == "7"
        assert client.call("fail").result["isError"] is True
        shown = client.call("blocks").result
        assert shown["_meta"] == META
        assert len(shown["content"]) == 5
        assert [each["annotations"]["priority"] for each in shown["content"]] == [0.5] * 5

    def test_of_prompts_and_resources(self, client: Handshake) -> None:
        client.begin()
        assert len(client.send("prompts/get", {"name": "review", "arguments": {"code": "x"}}).result["messages"]) == 6
        assert client.send("resources/read", {"uri": "notes://1"}).result["contents"][0]["text"] == "a note"
        assert client.send("resources/read", {"uri": "notes://a/blob"}).result["contents"][0]["blob"] == "YQ=="

    def test_of_everything_else(self, client: Handshake) -> None:
        client.begin()
        wanted = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "code", "value": "a"}}
        assert client.send("completion/complete", wanted).result["completion"]["values"] == ["a1"]
        for method, params in (
            ("ping", {}),
            ("logging/setLevel", {"level": "info"}),
            ("resources/subscribe", {"uri": "notes://1"}),
            ("resources/unsubscribe", {"uri": "notes://1"}),
        ):
            assert client.send(method, params).result == {}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("nothing", {}),
        ("tools/call", {"name": "nothing"}),
        ("tools/call", {"name": "forecast", "arguments": 7}),
        ("prompts/get", {"name": "nothing"}),
        ("resources/read", {"uri": "nothing://"}),
        ("tools/list", {"cursor": "no cursor"}),
        ("logging/setLevel", {"level": "loud"}),
        ("completion/complete", {}),
    ],
)
def test_an_error_is_one_of_the_version(client: Handshake, method: str, params: JSON) -> None:
    client.begin()
    asked = request(method, params)
    message = client.post(asked).message
    assert "error" in message
    check_message(message, asked, client.version)


class TestMessages:
    """`Stream` checks each notification and request: see `Stream.next`."""

    def test_on_the_stream_of_a_call(self, client: Handshake) -> None:
        client.begin()
        wanted = {"name": "notes", "arguments": {}, "_meta": {"progressToken": "p"}}
        with client.open("tools/call", wanted) as stream:
            progress, logged = stream.next(), stream.next()
            assert text_of(stream.end()) == "done"
        assert ("message" in progress["params"]) == (client.version != "2024-11-05")
        assert logged["params"]["data"] == {"step": 1}

    def test_on_the_stream_of_notifications(self, client: Handshake) -> None:
        client.begin()
        client.send("resources/subscribe", {"uri": "notes://1"})
        with client.listen() as stream:
            client.call("notes")
            told = {stream.next()["method"].removeprefix("notifications/") for _ in range(4)}
        assert told == {*(f"{kind}/list_changed" for kind in ("tools", "prompts", "resources")), "resources/updated"}
