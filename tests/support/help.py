"""Addresses that lines of the log have in their field `help`."""

FAULTS = "https://mrtr-server.github.io/mrtr_server/troubleshooting/#faults-by-their-lines"
