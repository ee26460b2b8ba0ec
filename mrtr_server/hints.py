"""Names from FastMCP and the official SDK that are not here, with ours, for error messages."""

from collections.abc import Callable, Mapping
from re import search
from typing import Any, get_args, get_origin

from . import renamed


def _by_name(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts by each of the names that they stand beside."""
    return {name: text for names, text in texts.items() for name in names.split()}


_UVICORN = "an MRTRServer is an ASGI application; run it with `mrtr-server run module:app --host ... --port ...`"
_STDIO = "use `mrtr-server stdio module:app`, or app.run_stdio()"
_DECORATE = "register functions with the decorators, as in app.tool(function)"
_NOT_CALLED = "call the function itself, or walk its flow with mrtr_server.testing.Client(app)"
_SESSIONS = "there are no sessions here; a flow keeps what it needs in steps, answers and State[T]"
_AUTH = (
    'auth= takes a Starlette AuthenticationBackend: JWTAuth(issuer, audience="...") for the tokens of an issuer, '
    'BearerTokens({"token": "user"}) for fixed ones'
)
_AUTHORIZE = "authorize= decides who may call, and ctx.principal is who calls"
_LOG = 'ctx.log("...", level="{}")'
_FROM_RETURNS = (
    "the output schema comes from the return annotation, such as Annotated[ToolResult, Model] for a ToolResult(...), "
    "which sets every part of a result"
)
_UNIQUE = "names are unique; a second one is always refused"
_CACHED = "lists=Lists(cache_seconds=...) is for lists, cache_seconds= and cache= of @app.resource for what is read"
_ENABLED = "use app.disable(tools=[...]) and app.enable(tools=[...])"
_ONE_VERSION = "a name has one version; info=ServerInfo(version=...) is that of the server"
_ASK_DEPENDENCY = "Annotated[T, Depends(function)] fills a parameter that the model does not see"

SERVER_ATTRIBUTES: Mapping[str, str] = _by_name(
    {
        **{old: f"it is {new}() now" for old, new in renamed.SERVER_ATTRIBUTES.items()},
        "run run_async": f"{_UVICORN}; for stdio, {_STDIO}",
        "run_http_async run_streamable_http_async run_sse_async": _UVICORN,
        "run_stdio_async": _STDIO,
        "http_app streamable_http_app sse_app asgi_app": "the server is the ASGI application itself",
        "session_manager settings": "the application needs no session manager and no settings object beside it",
        "add_tool add_prompt add_resource add_template add_resource_fn": _DECORATE,
        "add_completion_handler": 'use @app.completion("argument", prompt="...")',
        "mount import_server add_provider add_transform wrap_transform add_extension": (
            'use app.include(other, prefix="...")'
        ),
        "custom_route include_router add_route": (
            "mount the server in a Starlette or FastAPI application that has the other routes"
        ),
        "add_middleware": (
            "use @app.around for calls; for HTTP pass Starlette's: MRTRServer(middleware=[Middleware(...)])"
        ),
        "dependency_overrides": "use `with app.override(dependency, function):`",
        "exception_handler": "use @app.on_error",
        "call_tool get_prompt render_prompt read_resource get_tool get_resource get_resource_template": _NOT_CALLED,
        "list_tools list_prompts list_resources list_resource_templates": (
            'ask as a client does: mrtr_server.testing.Client(app).request("tools/list")'
        ),
        "get_tasks docket": 'each tool sets its own: @app.tool(task="optional")',
        "from_openapi from_fastapi as_proxy": "there is no import; write a function for each tool",
        "get_context": "a handler takes it as a parameter: ctx: Context",
    }
)

CONTEXT: Mapping[str, str] = _by_name(
    {
        **renamed.CONTEXT,
        "report_progress": "use ctx.progress(progress, total, message)",
        "read_resource get_prompt list_resources list_prompts list_tools call_tool": "call the function itself",
        "session session_id": _SESSIONS,
        "get_state set_state delete_state state request_state": (
            "to keep a value until the next round, use the result of a step, or a parameter of type State[T]"
        ),
        "input_responses": "a parameter of type Inputs has the answers",
        "request_context": "use ctx.request, ctx.opened, ctx.user, ctx.principal, ctx.meta and ctx.client",
        "lifespan_context": "use ctx.opened, or Annotated[T, Depends(function)] with the function of lifespan=",
        "fastmcp mcp_server server app": "use the variable that your server is in",
        "request_id origin_request_id": "ctx.flow is the flow's id, the same in all its rounds",
        "client_id access_token": "use ctx.principal and ctx.user",
        "client_capabilities client_supports_extension client_extension_settings": (
            'use ctx.client.supports("sampling")'
        ),
        "protocol_version transport": "handlers are the same for every client",
        "is_background_task task_id": "a handler is the same in rounds and in tasks; ctx.flow is the flow's id",
        "send_notification": "use ctx.progress, ctx.log, or the app.notify_... methods",
        "enable_components disable_components reset_visibility": _ENABLED,
        "close_sse_stream close_standalone_sse_stream": "use ctx.checkpoint()",
        "elicit_form": "use ctx.elicit(message, Model)",
        **{level: f"use {_LOG.format(level)}" for level in ("debug", "info", "warning", "error", "critical")},
        "notify_tools_changed": "use app.notify_tools_changed()",
        "notify_prompts_changed": "use app.notify_prompts_changed()",
        "notify_resources_changed": "use app.notify_resources_changed()",
        "notify_resource_updated": "use app.notify_resource_updated(uri)",
    }
)

SERVER_OPTIONS: Mapping[str, str] = _by_name(
    {
        **renamed.SERVER_OPTIONS,
        "tools resources prompts": _DECORATE,
        "host port log_level transport stateless_http json_response": _UVICORN,
        "streamable_http_path sse_path message_path mount_path": 'use path="/mcp"',
        "token_verifier auth_server_provider": _AUTH,
        "required_scopes": "use scopes=",
        "resource_server_url": "use auth=JWTAuth(issuer, audience=...), and base_url= behind a proxy",
        "tasks": 'set it for each tool: @app.tool(task="optional")',
        "request_state_security request_state_codec": "states are always sealed, with the keys in keys=",
        "on_duplicate on_duplicate_tools on_duplicate_resources on_duplicate_prompts": _UNIQUE,
        "warn_on_duplicate_tools warn_on_duplicate_resources warn_on_duplicate_prompts": _UNIQUE,
        "mask_error_details": (
            "clients see details only with debug=True; raise ToolError(...) with what the model may read"
        ),
        "list_page_size": "use lists=Lists(page_size=...)",
        "cors allow_origins cors_allowed_origins": "use origins=",
        "cache_ttl cache_scope cache_hints": _CACHED,
        "strict_input_validation": "use a strict type: StrictInt, or Field(strict=True)",
        "session_state_store event_store session_idle_timeout": _SESSIONS,
        "subscriptions": "changes reach listeners through the shared database, or through fanout() of your own Store",
        "transport_security host_origin_protection": "use origins= and allowed_hosts=",
        "include_tags exclude_tags": "use app.disable(tags=[...]) and app.enable(tags=[...])",
        "dependencies": f"list packages in your project; {_ASK_DEPENDENCY}",
        "providers transforms experimental_capabilities": _DECORATE,
        "resource_security": "check what {+path} has matched before you open a file by it",
        "client_log_level": "each client sets its log level in its requests",
        "sampling_handler": "a client without sampling can't be asked; check ctx.client.supports(...) first",
        "dereference_schemas": "schemas are served as pydantic makes them",
        "tool_serializer": _FROM_RETURNS,
    }
)

_OF_ALL: Mapping[str, str] = {
    "version": _ONE_VERSION,
    "auth": _AUTHORIZE,
    "enabled": _ENABLED,
    "app": "use ui=app.ui(...), and used_by= for who may call it",
}

TOOL_OPTIONS: Mapping[str, str] = _by_name(
    {
        **_OF_ALL,
        **renamed.TOOL_OPTIONS,
        "output_schema structured_output": _FROM_RETURNS,
        "serializer": "use text=, a function of the result that makes what a model reads",
        "run_in_thread": "a plain `def` runs in a thread, an `async def` on the event loop",
        "exclude_args": _ASK_DEPENDENCY,
        "tasks": 'use task="optional"',
        "schema": "use input_schema=",
    }
)

PROMPT_OPTIONS = _OF_ALL

RESOURCE_OPTIONS: Mapping[str, str] = {
    **_OF_ALL,
    **renamed.RESOURCE_OPTIONS,
    "security": SERVER_OPTIONS["resource_security"],
    "mimeType": "use mime_type=",
}

_CONTEXT_OPTIONS: Mapping[str, str] = {
    "response_type": "ctx.elicit(message, Model) takes a pydantic model",
    "response_title": "use Field(title=...) in the model",
    "response_description": "use Field(description=...) in the model",
    "elicitation_id": "ctx.elicit_url(message, url, key=...) makes the id by itself",
    "logger_name": "use logger=",
    "extra": "put it into the message: ctx.log({...})",
    "model": "use model_preferences=",
    "ui": "pages of apps draw forms and confirmations alone: ctx.elicit(..., ui=page)",
    "result_type": "the text of the answer is .text; ask for JSON in the message, and parse that",
}

_RESULTS: Mapping[str, str] = _by_name(
    {
        "CallToolResult ToolResult": "mrtr_server.ToolResult",
        "Image": "mrtr_server.ImageContent(data=...)",
        "Audio": "mrtr_server.AudioContent(data=...)",
        "File": "mrtr_server.EmbeddedResource(resource=ResourceContents(...))",
        "InputRequiredResult": "mrtr_server.InputRequired(...)",
        "GetPromptResult PromptResult": "mrtr_server.PromptResult",
        "ReadResourceResult ResourceResult": "mrtr_server.ResourceContents",
    }
)
_RAISED: Mapping[str, str] = _by_name(
    {
        "ToolError PromptError ResourceError HTTPException": "mrtr_server.ToolError",
        "MCPError McpError": "mrtr_server.ProtocolError",
        "NotFoundError": "mrtr_server.NotFound",
    }
)
_THEIRS = frozenset({"mcp", "mcp_types", "fastmcp", "starlette", "fastapi"})


def attributes_of(words: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """Return a `__getattr__` that refuses attributes of other frameworks, with ours, unless old names are collected."""

    def missing(self: Any, name: str) -> Any:
        if name in words and not hasattr(type(self), name):
            message = f"{type(self).__name__} has no {name!r}: {words[name]}"
            if name in renamed.SERVER_ATTRIBUTES and renamed.is_collected(message):
                return object.__getattribute__(self, renamed.SERVER_ATTRIBUTES[name])
            raise AttributeError(message)
        return object.__getattribute__(self, name)  # raises, as it has done before

    return missing


def for_result(annotation: Any) -> str:
    return _of_type(annotation, _RESULTS)


def for_error(error: BaseException) -> str:
    if hint := _of_type(type(error), _RAISED):
        return f"raise {hint} for the client to read it"
    text = str(error)
    if isinstance(error, TypeError) and (found := search(r"Context\.\w+\(\) got an .* argument '(\w+)'", text)):
        return _CONTEXT_OPTIONS.get(found[1], "")
    if isinstance(error, TypeError) and search(r"Context\.log\(\) takes \d", text):
        return 'pass the level by name: ctx.log(data, level="info")'
    if isinstance(error, AttributeError) and (found := search(r"'(\w+)' object has no attribute '(\w+)'", text)):
        if found[1] == "Elicited" and found[2] == "data":
            return "the form is in .content"
        if found[2] in ("action", "data") and hasattr(type(error.obj), "model_fields"):
            return f"the answer is the {found[1]} itself; ask for Elicited[{found[1]}] to branch on a no"
    return ""


def _of_type(annotation: Any, words: Mapping[str, str]) -> str:
    for each in (annotation, get_origin(annotation), *get_args(annotation)):
        if isinstance(each, type) and each.__module__.partition(".")[0] in _THEIRS:
            name = each.__name__.partition("[")[0]
            if name in words:
                return words[name]
    return ""
