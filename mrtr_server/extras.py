"""What optional parts need, and how to install it."""

from .errors import SetupError

EXTRAS = {
    "schemas": ("jsonschema-rs>=0.60",),
    "postgres": ("asyncpg>=0.30",),
    "otel": ("opentelemetry-api>=1.30",),
    "prometheus": ("prometheus-client>=0.21",),
    "auth": ("PyJWT[crypto]>=2.10", "httpx>=0.28"),
    "client": ("httpx>=0.28", "sniffio>=1.3"),
    "cli": ("httpx>=0.28", "sniffio>=1.3", "rich>=14", "questionary>=2.1", "prompt-toolkit>=3.0.40"),
    "limits": ("limits>=5.0", "redis>=5.2"),
}
"""What each extra installs, as `pyproject.toml` has it.

Named one by one, since that works for whoever installed this package, from a checkout too.
"""


def lacking(what: str, extra: str, error: ImportError) -> SetupError:
    """Return the error for something that can't be used without an extra."""
    absent = next((each for each in (error.__cause__, error) if isinstance(each, ModuleNotFoundError)), None)
    name = (absent.name or "").partition(".")[0] if absent is not None else ""
    needs = f"{what} needs {name}" if name else f"{what} can't use what is installed: {error}"
    install = " ".join(f"'{each}'" for each in EXTRAS[extra])
    return SetupError(f"{needs}. Install the extra {extra!r}, or: pip install {install}")
