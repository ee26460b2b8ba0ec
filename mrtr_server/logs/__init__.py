"""What goes to the log: plain text, short tracebacks, failures under a reference, refusals once, and where help is."""

import logging

from .failures import AuthorsFirst
from .formats import PlainText, WithHelp

logger = logging.getLogger("mrtr_server")
logger.addFilter(AuthorsFirst())
logger.addFilter(WithHelp())
logger.addFilter(PlainText())  # it cleans what those before it have formatted
