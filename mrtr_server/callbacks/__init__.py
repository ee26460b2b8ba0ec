"""Signed links back from a browser: what pages report to the flows that wait for them."""
