"""The versions that begin with a handshake, and in what they differ: one row for each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandshakeVersion:
    """What one version of the handshake era has.

    Args:
        name: the version.
        annotates: has hints on tools, audio, completions, and messages in progress.
        batches: takes several messages in one request.
        structures: has structured results and their schemas, titles, resource links, and elicitation.
        enriches: has icons; in forms several choices at once, titled choices and defaults; URL elicitation; tools in
            sampling; and streams that the server closes and the client resumes.
        tasks: has tasks.
    """

    name: str
    annotates: bool = False
    batches: bool = False
    structures: bool = False
    enriches: bool = False
    tasks: bool = False


VERSIONS = (
    HandshakeVersion("2025-11-25", annotates=True, structures=True, enriches=True, tasks=True),
    HandshakeVersion("2025-06-18", annotates=True, structures=True),
    HandshakeVersion("2025-03-26", annotates=True, batches=True),
    HandshakeVersion("2024-11-05"),
)
"""The newest first."""

NEWEST = VERSIONS[0]

UNNAMED = VERSIONS[2]
"""What a client speaks that names no version anywhere (Transports, Protocol Version Header)."""

BY_NAME = {version.name: version for version in VERSIONS}

HEADERS = {version.name.encode(): version for version in VERSIONS}
"""The versions by what `MCP-Protocol-Version` says."""
