"""What no linter knows of this project: its layers, where a library is imported, and what docstrings must say.

    .venv-test/bin/python scripts/lint.py

It prints a line for each finding, `PATH:LINE: what is wrong`, and its exit code is 1 if there is one. `scripts/test`
runs it.
"""

import sys
from itertools import chain
from pathlib import Path

from lint_docs import check_parameters, check_served, check_surface, check_words
from lint_layers import (
    check_dialects,
    check_layers,
    check_libraries,
    check_names,
    check_numbers,
    check_probes,
    check_seals,
    check_seam,
    layers_of,
)
from lint_sources import Package

import mrtr_server.client
import mrtr_server.testing
import mrtr_server.testing.store
from mrtr_server.methods.dispatcher import Dispatcher

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Print what is wrong; return 1 if there is anything."""
    package = Package(Path(mrtr_server.__file__).parent)
    layers = layers_of((ROOT / "docs" / "architecture.md").read_text())
    surface = (mrtr_server, mrtr_server.client, mrtr_server.testing, mrtr_server.testing.store)
    findings = chain(
        check_names(package),
        check_layers(package, layers),
        check_libraries(package),
        check_dialects(package),
        check_numbers(package, layers),
        check_seals(package),
        check_seam(package),
        check_probes(package),
        check_words(package),
        check_parameters(package),
        check_surface(package, surface),
        check_served(package, Dispatcher),
    )
    lines = sorted(str(each) for each in findings)
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
