"""What the tests ask people for. A model that is special to one test is there."""

from pydantic import BaseModel


class Login(BaseModel):
    name: str


class GitHubLogin(BaseModel):
    """What the specification's examples ask for; the key of the ask comes from its name."""

    name: str


class Email(BaseModel):
    address: str


class Payer(BaseModel):
    name: str
    company: str = ""


class Cart(BaseModel):
    items: list[str] = []
