r"""Everything that the official conformance suite calls for, in the forms of 2026-07-28 (with tasks) and 2025-11-25.

It needs the extras `schemas`, for the one tool with a raw schema, and `skills`; and Node 22 or later for the suite:

    uvicorn examples.conformance:app

    npx @modelcontextprotocol/conformance@0.2.0-alpha.12 server \
      --url http://127.0.0.1:8000/mcp --requirements 2026-07-28

(or `--requirements 2025-11-25`).
Or try a tool by hand. Round 1:

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "test_input_required_result_elicitation"}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2:

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "test_input_required_result_elicitation",
        "inputResponses": {"user_name": {"action": "accept", "content": {"name": "Alice"}}},
        '"$state"'}
    }'
"""

import asyncio
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from mrtr_server import (
    AudioContent,
    Context,
    Elicit,
    Elicited,
    EmbeddedResource,
    Header,
    ImageContent,
    InputRequired,
    Inputs,
    ListRoots,
    Message,
    MRTRServer,
    ProtocolError,
    ResourceContents,
    Roots,
    Sample,
    Sampled,
    ServerInfo,
    Task,
    TextContent,
    ToolError,
)

app = MRTRServer("conformance", info=ServerInfo(version="1.0.0"))
app.skills("skills")

# One red pixel, and a silence of no samples.
PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
WAV = b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=")


# Plain tools. The suite calls the first in the list without arguments, so that one must do without.


@app.tool
def test_simple_text() -> str:
    """Return text."""
    return "This is a simple text response for testing."


@app.tool
def test_image_content() -> ImageContent:
    """Return an image."""
    return ImageContent(data=PNG)


@app.tool
def test_audio_content() -> AudioContent:
    """Return audio."""
    return AudioContent(data=WAV)


@app.tool
def test_embedded_resource() -> EmbeddedResource:
    """Return an embedded resource."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


@app.tool
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return text, an image and a resource."""
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PNG),
        _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


@app.tool
def test_error_handling() -> str:
    """Fail with a message for the model."""
    raise ToolError("This tool intentionally returns an error for testing")


@app.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress on the way."""
    for done in (0, 50, 100):
        await ctx.progress(done, 100)
        await asyncio.sleep(0.05)
    return "Tool with progress executed."


@app.tool
async def test_logging_tool(ctx: Context) -> str:
    """Write to the client's log, if the client wants that."""
    await ctx.log("Tool execution started")
    return "Tool with logging executed."


@app.tool
def test_custom_headers(message: Annotated[str, Header("Message")]) -> str:
    """Take a message that the header Mcp-Param-Message repeats."""
    return f"The message was {message!r}."


@app.tool(
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Take arguments that a schema of its own describes."""
    return f"The arguments were {', '.join(sorted(arguments)) or 'none'}."


# What only clients of 2025-11-25 are asked, or call


@app.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Write to the client's log three times."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.log(message)
        await asyncio.sleep(0.05)
    return "Tool with logging executed."


@app.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model."""
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


class Contact(BaseModel):
    """A form with a user's name and address."""

    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


@app.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the person for a name and an address."""
    answer = await ctx.elicit(message, Elicited[Contact])
    return f"User response: {answer.action}, {answer.content}"


class Defaults(BaseModel):
    """A form whose fields have defaults."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@app.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with defaults."""
    answer = await ctx.elicit("Please review and update the form fields with defaults", Elicited[Defaults])
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


Option = Literal["option1", "option2", "option3"]


Value = Literal["value1", "value2", "value3"]
TITLED: list[Any] = [
    {"const": "value1", "title": "First Option"},
    {"const": "value2", "title": "Second Option"},
    {"const": "value3", "title": "Third Option"},
]


class Choices(BaseModel):
    """A form with every kind of choice."""

    untitledSingle: Option = "option1"
    titledSingle: Annotated[Value, Field(json_schema_extra={"oneOf": TITLED})] = "value1"
    legacyEnum: Annotated[
        Literal["opt1", "opt2", "opt3"],
        Field(json_schema_extra={"enumNames": ["Option One", "Option Two", "Option Three"]}),
    ] = "opt1"
    untitledMulti: list[Option] = []
    titledMulti: list[Annotated[Value, Field(json_schema_extra={"oneOf": TITLED})]] = []


@app.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask with choices."""
    answer = await ctx.elicit("Please select options from the enum fields", Elicited[Choices])
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


@app.tool
async def test_reconnection(ctx: Context) -> str:
    """Let the client go, which comes back for the result."""
    await ctx.close_stream(retry=0.5)
    return "Reconnection test completed successfully."


# Changes of the lists


@app.tool
def test_trigger_tool_change() -> str:
    """Say that the list of tools has changed."""
    app.notify_tools_changed()
    return "Listeners were told that the tools have changed."


@app.tool
def test_trigger_prompt_change() -> str:
    """Say that the list of prompts has changed."""
    app.notify_prompts_changed()
    return "Listeners were told that the prompts have changed."


# Tools that ask


class Name(BaseModel):
    """A form with a name."""

    name: str


class Ok(BaseModel):
    """A form with a yes or no."""

    ok: bool


class Color(BaseModel):
    """A form with a color."""

    color: str


class Topic(BaseModel):
    """A form with the context of a prompt."""

    context: str


ASK_NAME = Elicit("What is your name?", Name)
ASK_OK = Elicit("Please confirm", Ok)
ASK_COLOR = Elicit("What is your favorite color?", Color)
ASK_TOPIC = Elicit("What context should the prompt use?", Topic)
ASK_CAPITAL = Sample("What is the capital of France?", max_tokens=100)
ASK_GREETING = Sample("Generate a greeting", max_tokens=50)


@app.tool
async def test_missing_capability(ctx: Context) -> str:
    """Ask the client's model, which a client without sampling can't do."""
    return (await ctx.sample("What is the capital of France?", max_tokens=100)).text


@app.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Ask for a name in the middle of the code."""
    name = await ctx.elicit("What is your name?", Name)
    return f"Hello, {name.name}!"


@app.tool
def test_input_required_result_elicitation(inputs: Inputs) -> str | InputRequired:
    """Ask for a name."""
    name = inputs.get("user_name", Name)
    return f"Hello, {name.name}!" if name else InputRequired(user_name=ASK_NAME)


@app.tool
def test_input_required_result_sampling(inputs: Inputs) -> str | InputRequired:
    """Ask the client's model a question."""
    answer = inputs.get("capital_question", Sampled)
    return answer.text if answer else InputRequired(capital_question=ASK_CAPITAL)


@app.tool
def test_input_required_result_list_roots(inputs: Inputs) -> str | InputRequired:
    """Ask for the client's roots."""
    listed = inputs.get("client_roots", Roots)
    if listed is None:
        return InputRequired(client_roots=ListRoots())
    return f"Roots: {', '.join(root.uri for root in listed.roots)}"


@app.tool
def test_input_required_result_request_state(inputs: Inputs) -> str | InputRequired:
    """Ask for a yes or no, with a state."""
    answer = inputs.get("confirm", Ok)
    return f"state-ok: {answer.ok}" if answer else InputRequired(confirm=ASK_OK)


@app.tool
def test_input_required_result_multiple_inputs(inputs: Inputs) -> str | InputRequired:
    """Ask the person, the model and the client at once."""
    name = inputs.get("user_name", Name)
    greeting = inputs.get("greeting", Sampled)
    listed = inputs.get("client_roots", Roots)
    if name is None or greeting is None or listed is None:
        return InputRequired(user_name=ASK_NAME, greeting=ASK_GREETING, client_roots=ListRoots())
    return f"{greeting.text}, {name.name}. You work in {len(listed.roots)} places."


@app.tool
def test_input_required_result_multi_round(inputs: Inputs) -> str | InputRequired:
    """Ask for a name, then for a color."""
    name = inputs.get("step1", Name)
    if name is None:
        return InputRequired(step1=ASK_NAME)
    color = inputs.get("step2", Color)
    if color is None:
        return InputRequired(step2=ASK_COLOR)
    return f"{name.name} likes {color.color}."


@app.tool
def test_input_required_result_tampered_state(inputs: Inputs) -> str | InputRequired:
    """Ask for a yes or no, with a state that must come back as it is."""
    answer = inputs.get("confirm", Ok)
    return f"integrity-ok: {answer.ok}" if answer else InputRequired(confirm=ASK_OK)


@app.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask in the way that the client can answer."""
    if ctx.client.supports("elicitation"):
        name = await ctx.elicit("What is your name?", Name, key="user_name")
        return f"Hello, {name.name}!"
    return (await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")).text


# Tasks


@app.tool
def greet(name: str) -> str:
    """Greet somebody; never a task."""
    return f"Hello, {name}!"


@app.tool(task=Task("optional", ttl=900, poll=0.5))
async def slow_compute(seconds: float, label: str = "computation") -> str:
    """Take some seconds; a task for a client that takes one."""
    await asyncio.sleep(seconds)
    return f"The {label} took {seconds:g} seconds."


@app.tool(task=Task("required", ttl=900, poll=0.5))
def failing_job() -> str:
    """Fail in a task, with a message for the model."""
    raise ToolError("This job intentionally fails for testing")


@app.tool(task=Task("required", ttl=900, poll=0.5))
def protocol_error_job() -> str:
    """Fail in a task, with an error for the client."""
    raise ProtocolError("This job intentionally fails with a protocol error for testing")


@app.tool(task=Task("required", ttl=900, poll=0.5))
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Ask in a task before anything is deleted."""
    await ctx.confirm(f"Delete {filename}?")
    return f"Deleted {filename}."


@app.tool(task=Task("required", ttl=900, poll=0.5))
async def multi_input(ctx: Context) -> str:
    """Ask two things at once in a task."""
    first, second = await ctx.ask(Elicit("What is your name?", Name), Elicit("Who is with you?", Name))
    return f"Hello, {first.name} and {second.name}!"


@app.tool(task=Task("required", ttl=900, poll=0.5, rounds_first=True))
async def test_tool_with_task(ctx: Context) -> str:
    """Ask in rounds, and continue as a task."""
    name = await ctx.elicit("What is your name?", Name, key="user_name")
    await ctx.background()
    return f"Hello, {name.name}!"


# Prompts


@app.prompt
def test_simple_prompt() -> str:
    """Get a prompt without arguments."""
    return "This is a simple prompt for testing."


@app.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Get a prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@app.completion("arg1", prompt="test_prompt_with_arguments")
def complete_arg1(value: str) -> list[str]:
    """Suggest values for the first argument."""
    return [known for known in ("testValue1", "testValue2") if known.startswith(value)]


@app.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[EmbeddedResource | str]:
    """Get a prompt with a resource in it."""
    return [
        _embedded(resourceUri, "Embedded resource content for testing."),
        "Please process the embedded resource above.",
    ]


@app.prompt
def test_prompt_with_image() -> list[Message]:
    """Get a prompt with an image in it."""
    return [Message(content=ImageContent(data=PNG)), Message(content="Please analyze the image above.")]


@app.prompt
def test_input_required_result_prompt(inputs: Inputs) -> str | InputRequired:
    """Get a prompt that first asks what it is about."""
    topic = inputs.get("user_context", Topic)
    return f"Tell me more about {topic.context}." if topic else InputRequired(user_context=ASK_TOPIC)


# Resources


@app.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Read a text."""
    return "This is the content of the static text resource."


@app.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Read an image."""
    return PNG


@app.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """Read what clients may listen to."""
    return "This resource is watched."


@app.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:
    """Read the data of an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(resource=ResourceContents(uri=uri, mime_type=mime_type, text=text))
