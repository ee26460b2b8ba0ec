"""`mrtr-server new`: make a project."""

import shlex
from pathlib import Path

import click

from ..errors import SetupError


@click.command()
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Make a project in the folder NAME.

    It has a server with a tool, its tests, a Dockerfile and a CI workflow. The folder must be empty, or not there. Its
    name is that of the project: lower-case letters, digits, - and _.
    """
    from ..new.project import installed_from, make_project

    try:
        package = make_project(folder)
    except SetupError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder} can't be written: {error.strerror}") from None
    click.echo(f"Made {folder}. Next:\n")
    if folder.resolve() != Path.cwd():
        click.echo(f"  cd {folder}")
    click.echo(
        f"  pip install -e '.[dev]'\n  pytest\n  mrtr-server dev {package}.server:app\n\n"
        "Then open the address of the page that it prints, call the tool, and answer its questions."
    )
    if checkout := installed_from():
        click.echo(
            f"\nThis mrtr_server was installed from {checkout}. In another environment, install it from there "
            f"first:\n\n  pip install {shlex.quote(f'{checkout}[fast]')}"
        )
