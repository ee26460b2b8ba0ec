"""Who is compared: the packages, the application and the scenarios of each."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = "ours"
TODAY = ("call", "flow", "sync")
HANDSHAKE = ("handshake-call", "handshake-initialize", "handshake-ask")


@dataclass(frozen=True)
class Contender:
    """One server.

    name: what `--only` calls it.
    title: its name in the report.
    environment: the virtual environment, or the folder of npm's packages, that it runs in.
    target: what uvicorn imports, from `servers/`; called first when `factory`. For Node, the form of its program.
    scenarios: the scenarios that it serves.
    http: the class that speaks HTTP for uvicorn, as its option `--http` takes it.
    """

    name: str
    title: str
    environment: str
    target: str
    scenarios: tuple[str, ...] = TODAY
    factory: bool = True
    http: str = "httptools"


ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "ours": ("--editable", f"{HERE.parent}[fast]"),
    "mcp": ("mcp==2.3.0",),
    "fastmcp": ("fastmcp==4.1.2",),
    "starlette": ("starlette",),
    "asgi": ("pydantic",),
    "tasks-ours": ("--editable", f"{HERE.parent}[fast,postgres]"),
    "tasks-fastmcp": ("fastmcp[tasks]==4.1.2",),
}
"""What pip installs into each virtual environment, besides uvicorn, uvloop and httptools."""

NODE: dict[str, tuple[str, ...]] = {
    "typescript": ("@modelcontextprotocol/server@2.4.0", "@modelcontextprotocol/node@2.1.2", "zod@4.6.7"),
}
"""What npm installs into each folder; its program in `servers/` has the name of the folder."""

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(OURS, "mrtr_server", "ours", "ours:app", (*TODAY, *HANDSHAKE), factory=False),
        Contender(
            "ours-one-write",
            "mrtr_server, its own protocol class",
            "ours",
            "ours:app",
            factory=False,
            http="mrtr_server.uvicorn_http.one_write:OneWriteProtocol",
        ),
        Contender(
            "ours-messages", "uvicorn's own, by messages", OURS, "ours:app", factory=False, http="protocols:Messages"
        ),
        Contender(
            "ours-joined", "head and body in one write", OURS, "ours:app", factory=False, http="protocols:Joined"
        ),
        Contender("ours-whole", "responses as a whole", OURS, "ours:app", factory=False, http="protocols:Whole"),
        Contender("mcp", "mcp", "mcp", "sdk:fastest"),
        Contender("fastmcp", "fastmcp", "fastmcp", "fastmcp_server:fastest"),
        Contender("starlette", "bare Starlette route", "starlette", "starlette_route:app", ("call",), factory=False),
        Contender("asgi", "bare ASGI app", "asgi", "bare_asgi:app", ("call",), factory=False),
        Contender("mcp-defaults", "mcp, default settings", "mcp", "sdk:defaults", (*TODAY, *HANDSHAKE)),
        Contender("fastmcp-defaults", "fastmcp, default settings", "fastmcp", "fastmcp_server:defaults"),
        Contender("typescript", "TypeScript SDK", "typescript", "fastest"),
        Contender("typescript-defaults", "TypeScript SDK, default settings", "typescript", "defaults"),
        Contender("ours-sqlite", "mrtr_server, with SQLite", "ours", "ours:with_sqlite", HANDSHAKE),
    )
}

USUAL = ("ours", "mcp", "fastmcp", "starlette", "asgi")
"""Who runs unless `--only` names others."""
