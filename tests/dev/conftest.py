"""What commands change in the process that runs them."""

from ..cli.conftest import logging_as_it_was as logging_as_it_was
