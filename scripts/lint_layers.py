"""The layers of the package: imports go downwards only, and a library is imported where a table says so."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from lint_sources import TOP, Finding, Package, Source

DIALECTS = {"protocol.drafts", "protocol.handshake", "protocol.v2026_07_28"}
ENCODINGS = "protocol.draft_encodings"
"""Other forms of a dialect, built on it."""
WIRE = {
    *DIALECTS,
    ENCODINGS,
    *(f"protocol.{each}" for each in ("dialect", "draft_answers", "envelope", "handshake_versions")),
}
"""What knows the forms of messages on the wire."""

CODES = "protocol.event_codes"
"""The codes of an extension, which hosts know by two tables."""

CHOICE = "protocol.served_dialects"
"""Which of them are served: who makes a server passes it on, and knows none."""

VERSIONED = DIALECTS | {
    ENCODINGS,
    *(f"protocol.{each}" for each in ("draft_answers", "handshake_versions", "served_dialects")),
    "cli.inspecting",  # the schema of the registry has a day, too
}
"""Where a version of the protocol may be named."""

KNOW_THE_WIRE = {"transport", "testing", "wire"}
"""The packages that use the forms of messages."""

KNOW_THE_CHOICE = {
    *(f"deployment.{each}" for each in ("review", "settings", "wiring")),
    *(f"transport.{each}" for each in ("endpoint", "stdio")),
    "testing.session",
}

OPEN_WHAT_IS_SEALED = {TOP, "crypto.place_codec", "deployment.wiring", "flow.states"}  # the last one only opens
"""What is sealed is bound to its place by one module. The state of a flow is bound by its journal."""

NOT_STATUSES = {"limits": {200}, "schema.misfits": {200}, "registration.skills": {500}}
"""Numbers that are a depth or a length there, by module."""

VERSION = re.compile(r"20\d\d-\d\d-\d\d|DRAFT|draft")
STATUSES = {status.value for status in HTTPStatus} - {100}  # a hundred is also just a number
LOWEST_PLAIN = -31_000
"""JSON-RPC codes are lower."""

KINDS = re.compile(r"\w*(Store|Tasks|Fanout|Database|Notices)")
"""The classes of stores, and of what they are made of, by their names."""
OBJECTS = re.compile(r"\b_?(store|given_store|watched|tasks|fanout|database|notices)$")
"""What a store, or a part of one, is called where it is used."""
MAY_PROBE = {
    "deployment.settings": {"isinstance(value, Store | str)"},  # whether it is a store at all
    "deployment.shared_resources": {"isinstance(store, Store)"},  # or a URL
    "live.session_states": {"getattr(self._fanout, 'updated_at', None)"},  # an application's own needs two methods
    "storage.watched": {"getattr(self._store, name)"},  # its method that a watched one calls
}

SEAM = {"cli.web_servers", "transport.web_server", "transport.one_write", "transport.bounded_protocol"}
"""What imports `uvicorn_http`, beside itself: the command that runs uvicorn, one seam, and two former places."""

ONLY_IMPORTERS = {
    "cryptography": {"crypto.codec"},
    "jsonschema_rs": {"schema.json_schema"},
    "itsdangerous": {"crypto.signing"},
    "click": {
        "cli",
        *(f"cli.{each}" for each in ("calling", "check", "dev", "events", "inspecting", "installing")),
        *(f"cli.{each}" for each in ("logins", "options", "run", "stored", "waits")),
    },
    "sqlite3": {"dev.effects", "storage.sql.sqlite", "storage.sql.sqlite_file"},
    "asyncpg": {"storage.sql.postgresql"},
    "sqlalchemy": {"storage.sql.outbox"},
    "starlette": {
        *(
            f"transport.{each}"
            for each in (
                "authentication",
                "callback_pages",
                "connection",
                "endpoint",
                "gate",
                "routing",
                "server_card",
                "sites",
            )
        ),
        *(f"auth.{each}" for each in ("fixed_tokens", "jwt_keys", "oauth", "token_backend")),
        *(
            f"login.{each}"
            for each in ("authorize", "cookies", "login", "pages", "providers", "serving", "token_endpoint", "web")
        ),
        "dev.console",
        "in_process",
        "client.asgi",
        "client.client",
        "protocol.callers",
        "flow.context",
        "flow.home",
        *(f"registration.{each}" for each in ("options", "records")),
        *(f"deployment.{each}" for each in ("lifecycle", "settings", "wiring")),
        "dev.page",
        "server",
        "testing.transports",
        "testing.webhooks",
    },
    "uvicorn": {
        *(f"uvicorn_http.{each}" for each in ("accepting", "one_write", "whole_responses", "heads")),
        "cli.web_servers",
        "cli.dev_server",
        "testing.webhooks",
    },
    "httptools": {"uvicorn_http.whole_responses", "uvicorn_http.heads"},
    "granian": {"cli.web_servers"},
    "pydantic_settings": {"deployment.environment"},
    "http": {"testing.transports"},
    "jwt": {"auth.jwt_keys"},
    "limits": {"flow.rate_counters"},
    "redis": {"flow.rate_counters"},
    "yaml": {"cli.yaml_text", "registration.yaml_front"},
    "prompt_toolkit": {"cli.terminal_client"},
    "pydantic": {  # what authors declare as models, and what is read of it
        "cli.calling",
        "client.results",
        *(f"deployment.{each}" for each in ("environment", "review")),
        *(f"flow.{each}" for each in ("asks", "pure", "sampling", "url_asks")),
        *(f"flow.{each}" for each in ("step_arguments", "steps", "undone")),
        *(f"protocol.{each}" for each in ("content", "draft_answers", "outgoing")),
        *(f"registration.{each}" for each in ("dependencies", "handlers", "records")),
        *(
            f"schema.{each}"
            for each in ("arguments", "exact", "forms", "generator", "hardening", "misfits", "peer_validator")
        ),
        *(f"schema.{each}" for each in ("results", "stored", "structured", "type_parts")),
        "testing.answers",
        "well_formed",
    },
    "rich": {"cli.terminal_client", "cli.terminal_form"},
    "questionary": {"cli.terminal_form"},
    "h11": {"fetcher", "fetcher.connection"},
    "certifi": {"fetcher"},
    "idna": {"fetcher.urls"},
    "httpx": {"auth.fetching", "client.asgi", "client.client", "client.connection"},
    "opentelemetry": {f"telemetry.{each}" for each in ("choice", "open_telemetry")},
    "prometheus_client": {"telemetry.prometheus"},
}
"""Where a library is imported, and nowhere else. Most have one module; ASGI, HTTP and the commands have a package."""

ANYWHERE = {
    "pydantic_core": "reads and writes JSON",
    "typing_extensions": "has what the oldest Python lacks of `typing`",
}
"""What any module may import, and why."""


def layers_of(page: str) -> list[str]:
    """Return the packages of the table in a page, the highest first."""
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", page, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row) if "." not in name]


def check_names(package: Package) -> Iterator[Finding]:
    """Yield imports of the package by its own name."""
    for source in package.sources.values():
        for node in ast.walk(source.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(name.partition(".")[0] == package.name for name in names):
                yield source.finding(node, "the package imports itself by relative names")


def check_layers(package: Package, layers: Sequence[str]) -> Iterator[Finding]:
    """Yield what imports upwards, or in a circle.

    Args:
        package: the package.
        layers: its parts, the highest first.
    """
    modules = {name: source for name, source in package.sources.items() if name != TOP}
    height = {layer: -row for row, layer in enumerate(layers)}
    for source in modules.values():
        if source.package not in height:
            yield source.finding(1, f"{source.package} has no row in the table of packages in docs/architecture.md")
    modules = {name: source for name, source in modules.items() if source.package in height}
    beside: dict[str, set[str]] = {}
    for name, source in modules.items():
        others = [(node, other, other.partition(".")[0]) for node, other in package.siblings(source) if other != name]
        for node, other, layer in others:
            if other == TOP or height.get(layer, 1) > height[source.package]:
                yield source.finding(node, f"imports {other}, which is above {source.package}")
        beside[name] = {other for _, other, layer in others if layer == source.package}
    for name, others_in_circle in _circles(beside).items():
        yield modules[name].finding(1, f"imports {', '.join(sorted(others_in_circle))} in a circle")


def _circles(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what is needed in a circle, or leads to one, with what of that it needs."""
    waiting = dict(needs)
    while ready := [name for name, needed in waiting.items() if not needed & waiting.keys()]:
        for name in ready:
            del waiting[name]
    return {name: needed & waiting.keys() for name, needed in waiting.items()}


def check_libraries(package: Package) -> Iterator[Finding]:
    """Yield libraries that are imported where no table says so, and entries of the tables that nothing needs."""
    importers: dict[str, set[str]] = {}
    for source in package.sources.values():
        for node, library in package.libraries(source):
            importers.setdefault(library, set()).add(source.name)
            if library in ONLY_IMPORTERS:
                if source.name not in ONLY_IMPORTERS[library]:
                    yield source.finding(node, f"{library} is imported only where scripts/lint_layers.py says so")
            elif library not in sys.stdlib_module_names and library not in ANYWHERE:
                yield source.finding(node, f"{library} is in no table of scripts/lint_layers.py")
    top = package.sources[TOP]
    for library, named in ONLY_IMPORTERS.items():
        for unneeded in sorted(named - importers.get(library, set())):
            yield top.finding(1, f"scripts/lint_layers.py: {unneeded} imports no {library}")


def check_dialects(package: Package) -> Iterator[Finding]:
    """Yield what knows a dialect, a version, a status of HTTP or a code of JSON-RPC, and should not.

    The dispatcher and all below it are the same for every client.
    """
    for source in package.sources.values():
        for node, other in package.siblings(source):
            is_edge = source.package in KNOW_THE_WIRE or source.name in WIRE | {CHOICE, TOP}
            if other in WIRE and not is_edge:
                yield source.finding(node, f"only the edge of the server knows {other}")
            if other == CHOICE and source.name not in KNOW_THE_CHOICE:
                yield source.finding(node, f"{other} is for those that serve, and for who makes them")
            if source.name in DIALECTS and other in DIALECTS | {ENCODINGS}:
                yield source.finding(node, f"a dialect does not know another one, such as {other}")
            if source.name == ENCODINGS and other in DIALECTS - {"protocol.drafts"}:
                yield source.finding(node, f"forms of drafts do not know {other}")
        if source.name not in VERSIONED:
            for number, line in enumerate(source.text.splitlines(), 1):
                if VERSION.search(line):
                    yield source.finding(number, "names a version of the protocol, which only the dialects do")


def check_numbers(package: Package, layers: Sequence[str]) -> Iterator[Finding]:
    """Yield statuses of HTTP and codes of JSON-RPC in the dispatcher, and below it."""
    neutral = set(layers[layers.index("methods") :])
    for source in package.sources.values():
        if source.package in neutral and source.name not in WIRE | {CODES}:
            forbidden = STATUSES - NOT_STATUSES.get(source.name, set())
            for node, number in _numbers(source):
                if number in forbidden or number <= LOWEST_PLAIN:
                    yield source.finding(node, f"{number} is of HTTP or JSON-RPC, which only the edge knows")


def _numbers(source: Source) -> Iterator[tuple[ast.AST, int]]:
    sliced = {id(part) for node in ast.walk(source.tree) if isinstance(node, ast.Slice) for part in ast.walk(node)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            if isinstance(node.operand.value, int):
                yield node, -node.operand.value
        elif isinstance(node, ast.Constant) and type(node.value) is int and id(node) not in sliced:
            yield node, node.value


def check_seals(package: Package) -> Iterator[Finding]:
    """Yield modules that seal without binding what they seal to its place."""
    for source in package.sources.values():
        for node in ast.walk(source.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            if "SealedCodec" in names and source.name not in OPEN_WHAT_IS_SEALED:
                yield source.finding(node, "what is sealed is bound to its place by crypto.place_codec")


def check_seam(package: Package) -> Iterator[Finding]:
    """Yield what knows the inside of uvicorn, and should not."""
    for source in package.sources.values():
        for node, other in package.siblings(source):
            if other.partition(".")[0] == "uvicorn_http" != source.package and source.name not in SEAM:
                yield source.finding(node, f"{other} is only for {', '.join(sorted(SEAM))}")


def check_probes(package: Package) -> Iterator[Finding]:
    """Yield calls that ask an object which kind of store it is, or what it can do."""
    for source in package.sources.values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and _is_probe(node):
                asked = ast.unparse(node)
                if asked not in MAY_PROBE.get(source.name, set()):
                    yield source.finding(node, f"nobody asks a store what it is: {asked}")


def _is_probe(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Name) or len(call.args) < 2:
        return False
    first, second = ast.unparse(call.args[0]), ast.unparse(call.args[1])
    if call.func.id in ("isinstance", "issubclass"):
        return any(KINDS.fullmatch(kind.rpartition(".")[2]) for kind in re.split(r"[\s|,()]+", second))
    return call.func.id in ("getattr", "hasattr") and OBJECTS.search(first) is not None
