"""Flows that go on in the background."""
