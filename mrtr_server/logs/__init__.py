"""What goes to the log: plain text, short tracebacks, failures under a reference, and refusals once."""

import logging

from .failures import AuthorsFirst
from .formats import PlainText

_logger = logging.getLogger("mrtr_server")
_logger.addFilter(AuthorsFirst())
_logger.addFilter(PlainText())  # it cleans what the one before it has formatted
