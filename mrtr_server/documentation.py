"""Where the documentation is, and which entry of its page of troubleshooting is about a message.

For authors and operators alone: no text for a client or a model has such an address.
"""

DOCS = "https://mrtr-server.github.io/mrtr_server/"
"""The address of the site, as `project.urls` in `pyproject.toml` and `site_url` in `zensical.toml` have it."""

_FAULTS = "faults-by-their-lines"

ENTRIES = {
    "need one shared key": "need-one-shared-key",
    "need one shared store": "need-one-shared-store",
    "no keys are given": "no-keys-are-given",
    "there is no shared store": "there-is-no-shared-store",
    "share no database": "its-workers-share-no-database",
    "has run in an earlier round with another value": "has-run-in-an-earlier-round-with-another-value",
    "needs a key=": "needs-a-key",
    "is used for two different questions": "is-used-for-two-different-questions",
    "no longer fits its declared type": "no-longer-fits-its-declared-type",
    "outside of ctx.step": "outside-of-ctxstep",
    "was called but never awaited": "was-called-but-never-awaited",
    "is no setting": "is-no-setting",
    "There is no module": "there-is-no-module",
    "Install the extra": "install-the-extra",
    "refused a requestState": "requeststate-is-not-valid-for-this-request",
    "did not declare the capability": "needs-capabilities-that-the-client-did-not-declare",
    "Refused the host": "refused-the-host",
    "the store can't be used": _FAULTS,
    "the store is slow": _FAULTS,
    "a pooler answers in its place": _FAULTS,
    "its tables are of version": _FAULTS,
    "its writes are on timeline": _FAULTS,
    "is taken over": _FAULTS,
    "This process did not run for": _FAULTS,
    "The event loop has stood still for": _FAULTS,
    "Overloaded:": _FAULTS,
    "sealed under a key that is not in the ring": _FAULTS,
    "do not fit it any more": _FAULTS,
    "Tasks can't be run here:": _FAULTS,
}
"""The anchor of the entry, by a part of the message."""


def help_for(*texts: str) -> str:
    """Return the address of the entry about what these texts say; empty for none."""
    for part, anchor in ENTRIES.items():
        if any(part in text for text in texts):
            return f"{DOCS}troubleshooting/#{anchor}"
    return ""
