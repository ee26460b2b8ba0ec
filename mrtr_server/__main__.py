"""The command `mrtr-server`, as `python -m mrtr_server`."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="mrtr-server")
