"""What is risky about a server, as far as its settings and its tools show it."""

import asyncio
import math
import re
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from inspect import isawaitable
from typing import Any, Literal, NamedTuple

from pydantic.alias_generators import to_snake

from ..addresses import is_loopback_address
from ..auth.fixed_tokens import BearerTokens
from ..crypto.keys import ENVIRONMENT as KEYS
from ..crypto.signing import SignedCodec
from ..errors import FlowError
from ..flow.url_asks import PATH
from ..limits import Limits
from ..protocol.apps import page_of
from ..protocol.served_dialects import ServedDialects
from ..registration.handlers import asked_fields, asks, confirms_by_code
from ..registration.inclusion import LISTINGS
from ..registration.pages import ServedPage
from ..registration.records import Prompt, Resource
from ..registration.registry import Registry
from ..registration.tools import Tool
from ..storage import ENVIRONMENT as DATABASE
from ..transport.authentication import NOT_SERVED, WELL_KNOWN, is_served
from .environment import unknown_variables
from .settings import Settings
from .shared_resources import SharedResources

SHORT_LEASE = 10.0  # seconds; a shorter lease is one to think about

_SECRET = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|passcode|pwd|secret|token|credentials?|otp|api_?key|(?:private|access)_key"
    r"|cvv|cvc|card_number|credit_?card|security_code)(?:$|_)"
)
"""Names of fields, in snake case, whose values are nobody's but the person's."""
SHORT_LIFE, LONG_LIFE = 10.0, 90 * 86400.0  # a lifetime makes sense between these, in seconds

RESERVED_FILES = 100  # what a process opens besides streams: connections to its store, sockets, files

LEVELS = ("error", "warning", "advice")  # how bad a finding is, the worst first

_OF_SERVER = (WELL_KNOWN, PATH, "/health", "/ready")
"""Paths at which a `Route` leads to something else of a server than its endpoint."""


class Finding(NamedTuple):
    """Something to mend or to decide before a server is deployed.

    Args:
        level: `"error"`: it does not work. `"warning"`: it is unsafe, or fails some day. `"advice"`: clients could be
            served better.
        about: the setting, tool, prompt or resource.
        message: what is wrong, and what to do.
    """

    level: Literal["error", "warning", "advice"]
    about: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.about}: {self.message}"


_warning, _advice = partial(Finding, "warning"), partial(Finding, "advice")


def review(
    settings: Settings[Any],
    registry: Registry,
    shared: SharedResources,
    *,
    dialects: ServedDialects,
    host: str,
    workers: int,
    server: object,
    site: object,
) -> list[Finding]:
    """Return what is wrong or risky about a server, the worst first; `site` is the application around it."""
    found = [
        *(_warning("environment", advice) for advice in unknown_variables().values()),
        *_review_deployment(settings, registry, shared, workers),
        *_review_waits(registry, shared),
        *_review_events(settings, registry, shared, workers),
        *_review_dialects(settings, dialects),
        *_review_questions(dialects, registry, shared, workers),
        *_review_access(settings, registry, host),
        *_review_tokens(settings, host),
        *_review_logins(settings, shared, workers),
        *_review_site(settings, server, site),
        *_review_card(settings),
        *_review_end(settings, host),
        *_review_limits(settings.limits or Limits()),
        *_review_lifetimes(settings.limits or Limits(), registry),
        *_review_descriptions(registry),
        *_review_scopes(settings, registry),
        *_review_forms(registry),
        *_review_pages(registry),
        *_review_skills(registry),
    ]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _review_deployment(
    settings: Settings[Any], registry: Registry, shared: SharedResources, workers: int
) -> Iterator[Finding]:
    if shared.refusal:
        yield Finding("error", "setup", shared.refusal)
    if not shared.has_keys:
        level: Literal["error", "warning"] = "error" if workers > 1 or shared.store.shared else "warning"
        yield Finding(
            level,
            "keys",
            f"there are none, so each process makes its own. Flows and tasks end when it restarts, and no other "
            f"process can continue them. Make a key with `mrtr-server keygen` and set {KEYS}",
        )
    if not shared.store.shared:
        once = sorted(tool.handler.name for tool in registry.tools.values() if tool.handler.needs_store)
        lost = {"tasks": sorted(registry.tasks), "redemptions": once}
        for what, tools in lost.items():
            if tools:
                message = (
                    f"there is none, so the {what} of {', '.join(tools)} stay in one process, and end with it. Set"
                )
                yield Finding("error" if workers > 1 else "warning", "database", f"{message} {DATABASE}")
        yield from _review_confirmations(registry, workers)
    if workers > 1 and shared.store.one_machine:
        yield _advice(
            "database",
            f"it is a SQLite file, so all {workers} processes must run on one machine, with the file on its "
            f"own disk. For several machines, set {DATABASE} to PostgreSQL",
        )
    if settings.metrics is not None and workers > 1:
        yield _warning(
            "metrics",
            f"each worker shows its own at {settings.metrics.path}, and a scrape reaches one of them. Start one "
            "process for each port, or push them by OpenTelemetry",
        )
    yield from _review_rates(settings, registry, workers)
    if settings.debug:
        yield _warning("debug", "debug=True shows clients what went wrong inside; leave it out in production")
    if isinstance(settings.codec, SignedCodec):
        yield _warning(
            "codec", "SignedCodec lets clients read their states, with all answers in them; leave codec= out"
        )


def _review_waits(registry: Registry, shared: SharedResources) -> Iterator[Finding]:
    if why := shared.lacks_store:
        yield Finding("error", "database", why)
    for name, wait in registry.waits.items():
        if not wait.four_eyes:
            yield _advice(
                f"wait {name}", "with four_eyes=False, whoever began a flow may answer what it waits for, too"
            )
        if not wait.confirmed:
            yield _advice(
                f"wait {name}",
                "with confirmed=False, a model or your own code answers, without a person's confirmation",
            )


def _review_events(
    settings: Settings[Any], registry: Registry, shared: SharedResources, workers: int
) -> Iterator[Finding]:
    of_tasks = settings.events.tasks is True and registry.has_tasks
    if not registry.events and not registry.waits and not of_tasks:
        return
    if registry.events and not shared.store.shared:
        yield Finding(
            "error" if workers > 1 else "warning",
            "database",
            f"there is none, so events and webhooks stay in one process, and end with it. Set {DATABASE}",
        )
    named = sorted(name for name, each in registry.events.items() if "webhook" in each.modes)
    named += ["events of the server's own"] if registry.waits or of_tasks else []
    if not named or not settings.webhooks.offered:
        return
    if settings.auth is None and not settings.middleware:
        yield _warning(
            "webhooks",
            f"nobody can have one for {', '.join(named)}, since no caller is authenticated: pass auth=, or middleware= "
            "that authenticates; or leave them out with Webhooks(offered=False)",
        )
    if find_spec("certifi") is None:
        yield _warning("webhooks", "they are not offered, since the extra 'auth' is not installed")
    # Scopes alone are those of the last subscribe, and never change.
    guarded = settings.authorize is not None or all(
        each.admits is not None or (each.hook is not None and each.hook.decides) for each in registry.events.values()
    )
    if settings.webhooks.endless and not guarded:
        yield _warning(
            "webhooks",
            "with endless=True, a subscription has an end all the same where there is neither authorize= of the "
            "server nor authorize= or admits= of the event, since nothing else could end it",
        )


def _review_confirmations(registry: Registry, workers: int) -> Iterator[Finding]:
    """Review the confirmations of a server without a shared store, as far as signatures and code show them."""
    handlers = [record.handler for _, _, record in registry.entries()]
    declared = {each.name for each in handlers if each.declares_confirmation}
    found = declared if workers == 1 else declared | {each.name for each in handlers if confirms_by_code(each)}
    if found:
        many = "each process remembers for itself which yes was used, so one may count in several"
        verb = "asks" if len(found) == 1 else "ask"
        one = "which yes was used is forgotten when the process ends, so it may count again"
        why = f"there is none, and {', '.join(sorted(found))} {verb} for a confirmation: {many if workers > 1 else one}"
        yield _warning("database", f"{why}. Set {DATABASE}")


def _review_rates(settings: Settings[Any], registry: Registry, workers: int) -> Iterator[Finding]:
    limits = settings.rate_limits
    has_rates = limits is not None or any(tool.rate is not None for tool in registry.tools.values())
    if has_rates and workers > 1 and (limits is None or limits.storage is None):
        yield _warning(
            "rate_limits",
            f"each of the {workers} processes counts by itself, so callers may call up to {workers} times as often; "
            "set RateLimits(storage=...) to a Redis or Valkey server",
        )
    if limits is not None and (unknown := sorted(limits.per_tool.keys() - registry.tools.keys())):
        yield _warning("rate_limits", f"per_tool names no tool of this server: {', '.join(unknown)}")


def _review_dialects(settings: Settings[Any], dialects: ServedDialects) -> Iterator[Finding]:
    if settings.dialects is not None and (gain := gain_of_ratified(dialects)):  # what is so by default needs no advice
        yield _advice("dialects", f"{gain}. Do that unless a client of yours needs them")


def gain_of_ratified(dialects: ServedDialects) -> str:
    """Return what a server gains if it serves the ratified versions of the protocol alone; nothing if it does."""
    if not dialects.experiments:
        return ""
    return (
        f"{', '.join(dialects.experiments)} is served, for clients that name no version. Their requests have no "
        "Mcp-Method and Mcp-Name headers for gateways to decide by, and do not declare what the client can be "
        f"asked. With dialects={dialects.ratified}, the ratified versions alone, such requests are refused, as the "
        "protocol has it"
    )


def _review_questions(
    dialects: ServedDialects, registry: Registry, shared: SharedResources, workers: int
) -> Iterator[Finding]:
    if dialects.handshake is None or workers == 1 or shared.store.shared:
        return
    asking = sorted({record.handler.name for _, record in _records(registry) if asks(record.handler)})
    if asking:
        newest = dialects.handshake.name
        yield Finding(
            "error",
            "questions",
            f"there is no database, so clients of {newest} and earlier get an error when they are asked by "
            f"{', '.join(asking)}: their answers may come to another of the {workers} processes. Set {DATABASE}; or "
            f"leave {newest} out of dialects=, and such clients can't use the server at all",
        )


def _review_access(settings: Settings[Any], registry: Registry, host: str) -> Iterator[Finding]:
    if settings.auth is None and not settings.middleware and not _is_loopback(host):
        yield _warning(
            "auth",
            f"anyone who reaches {host} may call every tool: pass auth=, or allow access only through a gateway that "
            "authenticates",
        )
    if "*" in settings.origins:
        yield _warning("origins", 'with "*", any page that a user opens can call the server; list your origins')
    if registry.callbacks and settings.base_url is None:
        yield _warning(
            "base_url",
            f"the links to {', '.join(sorted(registry.callbacks))} work on loopback only; pass base_url=",
        )
    if settings.docs and not _is_loopback(host):
        yield _advice(
            "docs",
            f"anyone who reaches {host} finds the page at /docs, with the list of all tools where there is no auth=. "
            "Leave docs= out, and set MRTR_DOCS where you want it",
        )


def _review_tokens(settings: Settings[Any], host: str) -> Iterator[Finding]:
    issuer = getattr(settings.auth, "issuer", "")
    if isinstance(issuer, str) and issuer.startswith("http://"):
        yield _warning("auth", f"the issuer {issuer} is asked without TLS, on this machine alone; name it by https")
    if _is_loopback(host):
        return
    if isinstance(settings.auth, BearerTokens):
        yield _warning(
            "auth",
            "BearerTokens are for development: the tokens never expire, and stand in the code; take JWTAuth or "
            "IntrospectionAuth",
        )
    names_servers = bool(getattr(settings.auth, "authorization_servers", ()))
    if names_servers and settings.base_url is None and settings.allowed_hosts is None:
        yield _advice(
            "base_url",
            "challenges name the address in the Host header of each request, which a proxy may have changed; "
            "pass base_url=",
        )


def _review_logins(settings: Settings[Any], shared: SharedResources, workers: int) -> Iterator[Finding]:
    if settings.auth is None or not hasattr(settings.auth, "everybody_of"):  # no `Login`
        return
    provider = settings.auth.everybody_of
    if provider is not None:
        yield (_warning if provider.is_public else _advice)(
            "auth", f"everybody with an account at {provider.issuer} may log in and use the server: pass allow="
        )
    if settings.base_url is None or not settings.base_url.startswith("https://"):
        yield _warning(
            "base_url",
            "people can log in on this machine alone, and their browsers keep cookies without the protection of "
            "https; pass base_url= with an https address",
        )
    if not shared.store.shared:
        yield Finding(
            "error" if workers > 1 else "warning",
            "database",
            "there is none, so each process redeems codes and refresh tokens for itself, and forgets at its end which "
            f"were used and which logins have ended. Set {DATABASE}",
        )


def _review_site(settings: Settings[Any], server: object, site: object) -> Iterator[Finding]:
    if site is None or not getattr(settings.auth, "authorization_servers", ()):
        return
    from ..transport.sites import paths_of, routes_of  # loads the routes of Starlette; the site has done that

    for mount, path in paths_of(routes_of(site), server):
        places = (mount + WELL_KNOWN + path, WELL_KNOWN + mount + path)
        request = {"type": "http", "router": site, "endpoint": server, "headers": []}
        if not path.startswith(_OF_SERVER) and not any(is_served(request, place) for place in places):
            yield _warning("auth", f"at {mount + path}, {NOT_SERVED.format(path=places[-1])}")


def _review_card(settings: Settings[Any]) -> Iterator[Finding]:
    if settings.info.name is not None and settings.base_url is None:
        yield _advice(
            "info", "it has a name=, but without base_url= the server has no card for clients that look for it"
        )


def _review_end(settings: Settings[Any], host: str) -> Iterator[Finding]:
    if settings.shutdown.lame_duck == 0 and not _is_loopback(host):
        yield _warning(
            "lame_duck",
            "with 0 the socket closes before a load balancer has seen that the server is not ready, and requests are "
            "lost at each restart; set it longer than the balancer's probe interval",
        )


def _review_limits(limits: Limits) -> Iterator[Finding]:
    seconds = limits.lease_seconds
    if seconds < SHORT_LEASE:
        yield _warning(
            "limits",
            f"lease_seconds={seconds:g} is short: a process that stands still for that long, or can't reach its "
            f"database, counts as dead, and others run its tasks and rounds again; take {SHORT_LEASE:g} or more",
        )

    most = _most_files()
    if limits.held_streams + RESERVED_FILES > most:
        yield _warning(
            "limits",
            f"held_streams={limits.held_streams} needs a file descriptor each, and a process may open {most:g}: raise "
            "the hard limit (`ulimit -Hn`, or LimitNOFILE= of systemd), or lower held_streams",
        )


def _most_files() -> float:
    try:
        import resource
    except ImportError:  # as on Windows
        return math.inf
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if hard == resource.RLIM_INFINITY else hard


def _review_lifetimes(limits: Limits, registry: Registry) -> Iterator[Finding]:
    for name in ("state_seconds", "flow_seconds", "task_seconds"):
        yield from _review_lifetime("limits", name, getattr(limits, name))
    if limits.state_seconds > limits.flow_seconds:
        yield _warning(
            "limits",
            f"state_seconds={limits.state_seconds:g} is longer than flow_seconds={limits.flow_seconds:g}, at which the "
            "flow ends; raise that, or lower state_seconds",
        )
    for name, tool in registry.tools.items():
        if tool.handler.answer_within is not None:
            yield from _review_lifetime(f"tool {name}", "answer_within", tool.handler.answer_within)
        if tool.handler.task is not None and tool.handler.task.ttl is not None:
            yield from _review_lifetime(f"tool {name}", "ttl", tool.handler.task.ttl)


def _review_lifetime(about: str, name: str, seconds: float) -> Iterator[Finding]:
    if seconds < SHORT_LIFE:
        yield _warning(about, f"{name}={seconds:g} is short: people, and their clients, take longer to come back")
    elif seconds > LONG_LIFE:
        yield _warning(
            about,
            f"{name}={seconds:g} is more than {LONG_LIFE / 86400:g} days: no key can be dropped before, and what is "
            "stored stays as long; is it in seconds?",
        )


def _is_loopback(host: str) -> bool:
    return host.startswith("unix:") or is_loopback_address(host)


def _review_descriptions(registry: Registry) -> Iterator[Finding]:
    for name, tool in registry.tools.items():
        if "description" not in tool.entry:
            yield _warning(f"tool {name}", "it has no description, so no model knows when to call it; add a docstring")
        bare = [
            each
            for each, schema in tool.entry["inputSchema"].get("properties", {}).items()
            if isinstance(schema, dict) and not {"description", "$ref", "properties", "enum", "const"} & schema.keys()
        ]
        if bare:
            yield _advice(
                f"tool {name}",
                f"no description of {', '.join(bare)}; add one with Annotated[..., Field(description=...)]",
            )
    for name, prompt in registry.prompts.items():
        if "description" not in prompt.entry:
            yield _advice(f"prompt {name}", "it has no description for people to choose it by; add a docstring")


def _records(registry: Registry) -> Iterator[tuple[str, Tool | Prompt | Resource]]:
    """Yield all that a server offers, with what it is called in findings."""
    for listing in LISTINGS:
        what = "resource" if listing == "resourceTemplates" else listing.removesuffix("s")
        for name, record in registry.records(listing).items():
            yield f"{what} {name}", record


def _review_scopes(settings: Settings[Any], registry: Registry) -> Iterator[Finding]:
    hooks = [(about, record.authorize) for about, record in _records(registry) if record.authorize is not None]
    given = {"scopes": frozenset(settings.scopes), **{about: hook.visible.union(hook.scopes) for about, hook in hooks}}
    for about, scopes in given.items():
        if "offline_access" in scopes:
            yield _warning(
                about,
                "offline_access is no right to use a resource: a client that wants refresh tokens asks its issuer for "
                "it by itself, and a token need not name it. Leave it out of scopes= and visible=",
            )


def _review_pages(registry: Registry) -> Iterator[Finding]:
    for about, record in _records(registry):
        if isinstance(record, Tool):
            uri = page_of(record.entry)
            if uri is not None and not registry.serves(uri):
                yield Finding("error", about, f"its page {uri} is no resource of this server, so hosts draw nothing")
            elif uri is not None and asks(record.handler) and not _is_ours(registry, uri):
                yield Finding(
                    "advice",
                    about,
                    f"it may ask, and its page {uri} has not the script of this package, so a host that draws apps and "
                    "can't elicit shows no question: make the page with app.ui(...)",
                )
        elif isinstance(record, Resource) and record.page is not None and not record.page.is_checked:
            yield from (Finding("error", about, problem) for problem in _problems_of_made_page(record, record.page))


_OF_A_SERVER = re.compile(r"[a-z][a-z0-9_.-]*")
"""Tools that a server could have: those of hosts have capitals, such as `Bash(git:*)`."""


def _review_skills(registry: Registry) -> Iterator[Finding]:
    for uri, record in registry.skills():
        allowed = "" if record.skill is None else record.skill.front_matter.get("allowed-tools", "")
        absent = [each for each in allowed.split() if _OF_A_SERVER.fullmatch(each) and each not in registry.tools]
        if absent:
            yield _warning(f"skill {uri}", f"its allowed-tools: names {', '.join(absent)}, which this server has not")


def _is_ours(registry: Registry, uri: str) -> bool:
    """Return whether a page is one of `app.ui`, which has our script."""
    found = registry.find_resource(uri)
    return found is not None and found.resource.page is not None


def _problems_of_made_page(record: Resource, page: ServedPage) -> Iterator[str]:
    """Yield what is wrong with a page that a function makes, where that needs nothing of a request."""
    handler = record.handler
    if handler.parameters or handler.own_parameters:
        return
    try:
        made = handler.function()
        if isawaitable(made):
            made = _result_of(made)
        page.body(made, record.entry["uri"], "")
    except Exception as error:
        yield str(error) if isinstance(error, FlowError) else f"its function failed: {error!r}"


def _result_of(made: Awaitable[Any]) -> Any:
    """Return what an awaitable returns, also where an event loop runs already."""

    async def wait() -> Any:
        return await made

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, wait()).result()


def _review_forms(registry: Registry) -> Iterator[Finding]:
    for about, record in _records(registry):
        secrets = {
            where: None
            for where, name, field in asked_fields(record.handler)
            if field.get("type") == "string" and _SECRET.search(to_snake(name))
        }
        if secrets:
            yield _warning(
                about,
                f"its form asks for what looks like a secret ({', '.join(secrets)}), but the client, and perhaps a "
                "model, sees what is typed into a form. Ask for it on a page, with elicit_url",
            )
