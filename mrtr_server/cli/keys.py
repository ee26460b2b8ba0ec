"""`mrtr-server keygen`, and the keys that other commands need."""

import secrets

import click

from ..crypto.keys import ENVIRONMENT as KEYS
from ..crypto.keys import KEY_BYTES, KeyRing
from ..errors import SetupError


@click.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS: 64 hex digits."""
    click.echo(secrets.token_hex(KEY_BYTES))


def ring_of_servers() -> KeyRing:
    """Return the keys in MRTR_KEYS. Raises `SetupError` if there are none."""
    ring = KeyRing.from_environment()
    if ring is None:
        raise SetupError(f"{KEYS} is not set; give it the keys of the servers, the new one first")
    return ring
