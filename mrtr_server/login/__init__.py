"""An authorization server in the application: people log in where they have an account, and clients get tokens."""

from .login import Login
from .presets import Entra, GitHub, Google
from .providers import Oidc

__all__ = ["Entra", "GitHub", "Google", "Login", "Oidc"]
