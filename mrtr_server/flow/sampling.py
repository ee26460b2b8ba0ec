"""The ask for a message of the client's model, and its answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..errors import SetupError
from ..protocol.ask_kinds import SAMPLE
from ..protocol.content import first_problem, parts_of, role_and_content, sampling_block, uses_tools
from ..protocol.messages import JSON, Question
from .asks import AnswerModel, Ask, read_model, written


class Sampled(AnswerModel):
    """A message that the client's model wrote (Sampling, Creating Messages).

    Args:
        role: who speaks; `"assistant"` as a rule.
        content: one content block, or several, as plain JSON.
        model: the model that wrote it.
        stop_reason: why it stopped, if the client says so.
    """

    kind = SAMPLE

    role: Literal["user", "assistant"] = "assistant"
    content: dict[str, Any] | list[dict[str, Any]]
    model: str = ""
    stop_reason: str | None = None

    @field_validator("content")
    @classmethod
    def _refuse_text_that_is_none(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else [content]:
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise ValueError("a text block has no text")
        return content

    @property
    def text(self) -> str:
        """The text of all text blocks."""
        found = self.content if isinstance(self.content, list) else [self.content]
        return "".join(part["text"] for part in found if part.get("type") == "text")


def _refuse_no_json(value: Any) -> Any:
    try:
        from_json(to_json(value), allow_inf_nan=False)
    except ValueError:
        raise ValueError("it can't be written as JSON") from None
    return value


_JSONObject = Annotated[Mapping[str, Any], AfterValidator(_refuse_no_json)]


class _SampleOptions(BaseModel):
    max_tokens: Annotated[int, Field(strict=True, ge=1)]
    system_prompt: str | None = None
    model_preferences: _JSONObject | None = None
    temperature: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    stop_sequences: Sequence[str] | None = None
    metadata: _JSONObject | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    tools: Sequence[_JSONObject] | None = None
    tool_choice: _JSONObject | None = None


class Sample(Ask[Sampled]):
    """Ask the client's model for a message (Sampling, Creating Messages).

    Args:
        messages: the conversation; a string is one message of the user's, an item is a string, a content object, a
            `Message`, or plain JSON with `role` and `content`. For a parameter, also a function that returns them.
        max_tokens: how long the message may be, in tokens.
        system_prompt, model_preferences, temperature, stop_sequences, metadata, include_context, tools, tool_choice:
            as in the protocol, plain JSON. `tools` needs a client that declares `sampling.tools`.
        key: see `Ask`; `sample` by default.

    Raises:
        SetupError: a message or an option is not as the protocol has it.
    """

    default_key = "sample"
    texts = ("messages",)
    types = (Sampled, str)

    def __init__(
        self,
        messages: Any,
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        model_preferences: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(key)
        self.messages = messages if callable(messages) else _conversation(messages)
        options = {
            "max_tokens": max_tokens,
            "system_prompt": system_prompt,
            "model_preferences": model_preferences,
            "temperature": temperature,
            "stop_sequences": stop_sequences,
            "metadata": metadata,
            "include_context": include_context,
            "tools": tools,
            "tool_choice": tool_choice,
        }
        given = {name: value for name, value in options.items() if value is not None}
        try:
            _SampleOptions.model_validate(given)
        except ValidationError as error:
            raise SetupError(f"A sampling can't be sent: {first_problem(error)}") from None
        self._params = {to_camel(name): value for name, value in given.items()}

    @override
    def question(self) -> Question:
        params: JSON = {"messages": written(self.messages), **self._params}
        return SAMPLE.question(params, needs=_needs_of(params))

    @override
    def reader_of(self, wanted: Any) -> Callable[[JSON], Any]:
        """Return what reads an answer as the value of a parameter, as `Ask` does.

        Args:
            wanted: the type of the parameter: `Sampled`, or `str` for its text.

        Returns:
            A function that reads as `parse` does.
        """
        return (lambda raw: self.parse(raw).text) if wanted is str else self.parse

    @override
    def filled(self, texts: Mapping[str, Any]) -> "Sample":
        return super().filled({name: _conversation(messages) for name, messages in texts.items()})

    @override
    def parse(self, raw: JSON) -> Sampled:
        return read_model(Sampled, raw)


def _needs_of(sampling: JSON) -> tuple[str, ...]:
    """Return the capabilities that the parameters of a sampling need (Sampling, Capabilities)."""
    needs = []
    if "tools" in sampling or "toolChoice" in sampling or any(map(uses_tools, sampling["messages"])):
        needs.append("sampling.tools")
    if sampling.get("includeContext", "none") != "none":
        needs.append("sampling.context")
    return tuple(needs) or ("sampling",)


def _conversation(messages: Any) -> list[JSON]:
    try:
        sent = [sampling_message(m) for m in (messages if isinstance(messages, list | tuple) else [messages])]
    except TypeError as error:
        raise SetupError(f"A sampling's messages can't be sent: {error}") from None
    for message, following in zip(sent, [*sent[1:], {}], strict=True):
        _check_tool_results(message, following)
    return sent


def _check_tool_results(message: JSON, following: JSON) -> None:
    """Check that each use of a tool has its result in the next message, and results stand alone (Sampling)."""
    kinds = {each.get("type") for each in parts_of(message)}
    if "tool_result" in kinds and len(kinds) > 1:
        raise SetupError("A sampling's message with tool results must have nothing else; put that into another message")
    used = {each.get("id") for each in parts_of(message) if each.get("type") == "tool_use"}
    results = {each.get("toolUseId") for each in parts_of(following) if each.get("type") == "tool_result"}
    if used - results:
        raise SetupError("Each tool_use of a sampling's message needs its tool_result, by its id, in the next message")


def sampling_message(message: Any) -> JSON:
    """Return a message as plain JSON: strings and content blocks are the user's. Raises `TypeError` if it is none."""
    role, content = role_and_content(message)
    several = isinstance(content, list | tuple)
    written = [sampling_block(each) for each in (content if several else [content])]
    others = message if isinstance(message, Mapping) and "role" in message else {}
    return {**others, "role": role, "content": written if several else written[0]}
