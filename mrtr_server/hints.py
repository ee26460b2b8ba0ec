"""Names from FastMCP and the official SDK, with ours, for error messages."""

from collections.abc import Callable, Mapping
from re import search
from typing import Any, get_args, get_origin

from . import renamed

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
_LIFESPAN = "use ctx.opened, or Annotated[T, Depends(function)] with the function of lifespan="
_TAGS = "use app.disable(tags=[...]) and app.enable(tags=[...])"
_FROM_RETURNS = (
    "the output schema comes from the return annotation, such as Annotated[ToolResult, Model] for a ToolResult(...), "
    "which sets every part of a result"
)
_UNIQUE = "names are unique; a second one is always refused"
_CACHED = "lists=Lists(cache_seconds=...) is for lists, cache_seconds= and cache= of @app.resource for what is read"
_ENABLED = "use app.disable(tools=[...]) and app.enable(tools=[...])"
_ONE_VERSION = "a name has one version; info=ServerInfo(version=...) is that of the server"
_ASK_DEPENDENCY = "Annotated[T, Depends(function)] fills a parameter that the model does not see"

SERVER_ATTRIBUTES: Mapping[str, str] = {
    **{old: f"it is {new}() now" for old, new in renamed.SERVER_ATTRIBUTES.items()},
    **dict.fromkeys(("run", "run_async"), f"{_UVICORN}; for stdio, {_STDIO}"),
    **dict.fromkeys(("run_http_async", "run_streamable_http_async", "run_sse_async"), _UVICORN),
    "run_stdio_async": _STDIO,
    **dict.fromkeys(
        ("http_app", "streamable_http_app", "sse_app", "asgi_app"), "the server is the ASGI application itself"
    ),
    **dict.fromkeys(
        ("session_manager", "settings"), "the application needs no session manager and no settings object beside it"
    ),
    **dict.fromkeys(("add_tool", "add_prompt", "add_resource", "add_template", "add_resource_fn"), _DECORATE),
    **dict.fromkeys(("add_completion_handler",), 'use @app.completion("argument", prompt="...")'),
    **dict.fromkeys(
        ("mount", "import_server", "add_provider", "add_transform", "wrap_transform", "add_extension"),
        'use app.include(other, prefix="...")',
    ),
    **dict.fromkeys(
        ("custom_route", "include_router", "add_route"),
        "mount the server in a Starlette or FastAPI application that has the other routes",
    ),
    "add_middleware": "use @app.around for calls; for HTTP pass Starlette's: MRTRServer(middleware=[Middleware(...)])",
    "dependency_overrides": "use `with app.override(dependency, function):`",
    "exception_handler": "use @app.on_error",
    **dict.fromkeys(
        (
            "call_tool",
            "get_prompt",
            "render_prompt",
            "read_resource",
            "get_tool",
            "get_resource",
            "get_resource_template",
        ),
        _NOT_CALLED,
    ),
    **dict.fromkeys(
        ("list_tools", "list_prompts", "list_resources", "list_resource_templates"),
        'ask as a client does: mrtr_server.testing.Client(app).request("tools/list")',
    ),
    **dict.fromkeys(("get_tasks", "docket"), 'each tool sets its own: @app.tool(task="optional")'),
    **dict.fromkeys(("from_openapi", "from_fastapi", "as_proxy"), "there is no import; write a function for each tool"),
    "get_context": "a handler takes it as a parameter: ctx: Context",
}
"""Attributes of their servers that `MRTRServer` lacks."""

CONTEXT: Mapping[str, str] = {
    **renamed.CONTEXT,
    "report_progress": "use ctx.progress(progress, total, message)",
    **{level: f"use {_LOG.format(level)}" for level in ("debug", "info", "warning", "error", "critical")},
    **dict.fromkeys(
        ("read_resource", "get_prompt", "list_resources", "list_prompts", "list_tools", "call_tool"),
        "call the function itself",
    ),
    **dict.fromkeys(("session", "session_id"), _SESSIONS),
    **dict.fromkeys(
        ("get_state", "set_state", "delete_state", "state", "request_state"),
        "to keep a value until the next round, use the result of a step, or a parameter of type State[T]",
    ),
    "input_responses": "a parameter of type Inputs has the answers",
    "request_context": "use ctx.request, ctx.opened, ctx.user, ctx.principal, ctx.meta and ctx.client",
    "lifespan_context": _LIFESPAN,
    **dict.fromkeys(("fastmcp", "mcp_server", "server", "app"), "use the variable that your server is in"),
    **dict.fromkeys(("request_id", "origin_request_id"), "ctx.flow is the flow's id, the same in all its rounds"),
    **dict.fromkeys(("client_id", "access_token"), "use ctx.principal and ctx.user"),
    **dict.fromkeys(
        ("client_capabilities", "client_supports_extension", "client_extension_settings"),
        'use ctx.client.supports("sampling")',
    ),
    **dict.fromkeys(("protocol_version", "transport"), "handlers are the same for every client"),
    **dict.fromkeys(
        ("is_background_task", "task_id"), "a handler is the same in rounds and in tasks; ctx.flow is the flow's id"
    ),
    **{
        f"notify_{what}": f"use app.notify_{what}({argument})"
        for what, argument in (
            ("tools_changed", ""),
            ("prompts_changed", ""),
            ("resources_changed", ""),
            ("resource_updated", "uri"),
        )
    },
    "send_notification": "use ctx.progress, ctx.log, or the app.notify_... methods",
    **dict.fromkeys(("enable_components", "disable_components", "reset_visibility"), _ENABLED),
    **dict.fromkeys(("close_sse_stream", "close_standalone_sse_stream"), "use ctx.checkpoint()"),
    "elicit_form": "use ctx.elicit(message, Model)",
}
"""What their contexts have, and `Context` has not."""

SERVER_OPTIONS: Mapping[str, str] = {
    **renamed.SERVER_OPTIONS,
    **dict.fromkeys(("tools", "resources", "prompts"), _DECORATE),
    **dict.fromkeys(("host", "port", "log_level", "transport", "stateless_http", "json_response"), _UVICORN),
    **dict.fromkeys(("streamable_http_path", "sse_path", "message_path", "mount_path"), 'use path="/mcp"'),
    **dict.fromkeys(("token_verifier", "auth_server_provider"), _AUTH),
    "required_scopes": "use scopes=",
    "resource_server_url": "use auth=JWTAuth(issuer, audience=...), and base_url= behind a proxy",
    "tasks": 'set it for each tool: @app.tool(task="optional")',
    **dict.fromkeys(
        ("request_state_security", "request_state_codec"), "states are always sealed, with the keys in keys="
    ),
    **dict.fromkeys(
        (
            "on_duplicate",
            "on_duplicate_tools",
            "on_duplicate_resources",
            "on_duplicate_prompts",
            "warn_on_duplicate_tools",
            "warn_on_duplicate_resources",
            "warn_on_duplicate_prompts",
        ),
        _UNIQUE,
    ),
    "mask_error_details": "clients see details only with debug=True; raise ToolError(...) with what the model may read",
    "list_page_size": "use lists=Lists(page_size=...)",
    **dict.fromkeys(("cors", "allow_origins", "cors_allowed_origins"), "use origins="),
    **dict.fromkeys(("cache_ttl", "cache_scope", "cache_hints"), _CACHED),
    "strict_input_validation": "use a strict type: StrictInt, or Field(strict=True)",
    **dict.fromkeys(("session_state_store", "event_store", "session_idle_timeout"), _SESSIONS),
    "subscriptions": "changes reach listeners through the shared database, or through fanout() of your own Store",
    **dict.fromkeys(("transport_security", "host_origin_protection"), "use origins= and allowed_hosts="),
    **dict.fromkeys(("include_tags", "exclude_tags"), _TAGS),
    "dependencies": f"list packages in your project; {_ASK_DEPENDENCY}",
    **dict.fromkeys(("providers", "transforms", "extensions", "experimental_capabilities"), _DECORATE),
    "resource_security": "check what {+path} has matched before you open a file by it",
    "client_log_level": "each client sets its log level in its requests",
    "sampling_handler": "a client without sampling can't be asked; check ctx.client.supports(...) first",
    "dereference_schemas": "schemas are served as pydantic makes them",
    "tool_serializer": _FROM_RETURNS,
}
"""What their servers are made with, and `MRTRServer` is not."""

_OF_ALL: Mapping[str, str] = {
    "version": _ONE_VERSION,
    "auth": _AUTHORIZE,
    "enabled": _ENABLED,
    "app": "put data for the user interface into meta=",
}

TOOL_OPTIONS: Mapping[str, str] = {
    **_OF_ALL,
    **renamed.TOOL_OPTIONS,
    **dict.fromkeys(("output_schema", "structured_output", "serializer"), _FROM_RETURNS),
    "run_in_thread": "a plain `def` runs in a thread, an `async def` on the event loop",
    "exclude_args": _ASK_DEPENDENCY,
    "tasks": 'use task="optional"',
    "schema": "use input_schema=",
}
"""What their tools are registered with, and ours are not."""

PROMPT_OPTIONS = _OF_ALL
"""What their prompts are registered with, and ours are not."""

RESOURCE_OPTIONS: Mapping[str, str] = {
    **_OF_ALL,
    **renamed.RESOURCE_OPTIONS,
    "security": SERVER_OPTIONS["resource_security"],
    "mimeType": "use mime_type=",
}
"""What their resources are registered with, and ours are not."""

_CONTEXT_OPTIONS: Mapping[str, str] = {
    "response_type": "ctx.elicit(message, Model) takes a pydantic model",
    "response_title": "use Field(title=...) in the model",
    "response_description": "use Field(description=...) in the model",
    "elicitation_id": "ctx.elicit_url(message, url, key=...) makes the id by itself",
    "logger_name": "use logger=",
    "extra": "put it into the message: ctx.log({...})",
    "model": "use model_preferences=",
    "result_type": "the text of the answer is .text; ask for JSON in the message, and parse that",
}
"""What the methods of their contexts take, and those of `Context` do not."""

_RESULTS: Mapping[str, str] = {
    **dict.fromkeys(("CallToolResult", "ToolResult"), "mrtr_server.ToolResult"),
    "Image": "mrtr_server.ImageContent(data=...)",
    "Audio": "mrtr_server.AudioContent(data=...)",
    "File": "mrtr_server.EmbeddedResource(resource=ResourceContents(...))",
    "InputRequiredResult": "mrtr_server.InputRequired(...)",
    **dict.fromkeys(("GetPromptResult", "PromptResult"), "mrtr_server.PromptResult"),
    **dict.fromkeys(("ReadResourceResult", "ResourceResult"), "mrtr_server.ResourceContents"),
}
_RAISED: Mapping[str, str] = {
    **dict.fromkeys(("ToolError", "PromptError", "ResourceError", "HTTPException"), "mrtr_server.ToolError"),
    **dict.fromkeys(("MCPError", "McpError"), "mrtr_server.ProtocolError"),
    "NotFoundError": "mrtr_server.NotFound",
}
_THEIRS = frozenset({"mcp", "mcp_types", "fastmcp", "starlette", "fastapi"})


def attributes_of(words: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """Return a `__getattr__` that names our word for attributes of other frameworks.

    The attributes do not exist: it raises `AttributeError`, unless old names are collected.
    """

    def missing(self: Any, name: str) -> Any:
        if name in words and not hasattr(type(self), name):
            message = f"{type(self).__name__} has no {name!r}: {words[name]}"
            if name in renamed.SERVER_ATTRIBUTES and renamed.is_collected(message):
                return object.__getattribute__(self, renamed.SERVER_ATTRIBUTES[name])
            raise AttributeError(message)
        return object.__getattribute__(self, name)  # raises, as it has done before

    return missing


def for_result(annotation: Any) -> str:
    """Return what to return instead of another framework's result; empty for all other types."""
    return _of_type(annotation, _RESULTS)


def for_error(error: BaseException) -> str:
    """Return what to write instead of what made a handler fail; empty where that is not known."""
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
