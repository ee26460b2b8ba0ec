"""Where a client keeps what an authorization server gave: the keyring of the system, or a file of the user."""

import os
import tempfile
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from ..errors import SetupError

_SERVICE = "mrtr-server"


class TokenStore(Protocol):
    """Where tokens are kept, by the URL of the server that they are for. Its methods run in threads."""

    def load(self, server: str) -> str | None:
        """Return what is kept for a server.

        Args:
            server: its URL.

        Returns:
            The text that was saved; None if there is none.
        """
        ...

    def save(self, server: str, tokens: str) -> None:
        """Keep a text for a server, in the place of what was kept.

        Args:
            server: its URL.
            tokens: the text. All of it is secret.
        """
        ...

    def forget(self, server: str) -> None:
        """Forget what is kept for a server, if there is something.

        Args:
            server: its URL.
        """
        ...


class FileTokens(TokenStore):
    """Keeps tokens in files that their user alone can read, one for each server.

    Args:
        folder: where; `mrtr-server/tokens` below `XDG_STATE_HOME`, `LOCALAPPDATA` or `~/.local/state` by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".local" / "state"
        self._folder = folder or Path(base) / _SERVICE / "tokens"

    @override
    def load(self, server: str) -> str | None:
        try:
            return self._path(server).read_text("utf-8")
        except FileNotFoundError:
            return None

    @override
    def save(self, server: str, tokens: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=self._folder)  # for its user alone, from the beginning
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(tokens)
            os.replace(made, self._path(server))
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise

    @override
    def forget(self, server: str) -> None:
        self._path(server).unlink(missing_ok=True)

    def _path(self, server: str) -> Path:
        return self._folder / f"{sha256(server.encode()).hexdigest()}.json"


class SystemTokens(TokenStore):
    """Keeps tokens in the keyring of the system, if the package `keyring` is there and has one; else in files."""

    def __init__(self) -> None:
        self._files = FileTokens()

    @override
    def load(self, server: str) -> str | None:
        kept = self._ask("get_password", server)
        return kept if isinstance(kept, str) else self._files.load(server)

    @override
    def save(self, server: str, tokens: str) -> None:
        if self._ask("set_password", server, tokens) is _NO_KEYRING:
            self._files.save(server, tokens)
        else:
            self._files.forget(server)

    @override
    def forget(self, server: str) -> None:
        self._ask("delete_password", server)
        self._files.forget(server)

    def _ask(self, method: str, *arguments: str) -> Any:
        try:
            keyring = import_module("keyring")
        except ImportError:
            return _NO_KEYRING
        try:
            return getattr(keyring, method)(_SERVICE, *arguments)
        except keyring.errors.KeyringError:  # there is none, it is locked, or it takes nothing of that length
            return _NO_KEYRING


_NO_KEYRING: Any = object()


def not_kept(error: OSError) -> SetupError:
    return SetupError(f"The tokens can't be kept: {error.filename or ''} {error.strerror or error}")
