"""The command `mrtr-server`, as `python -m mrtr_server`."""

from .cli import main

main(prog_name="mrtr-server")
