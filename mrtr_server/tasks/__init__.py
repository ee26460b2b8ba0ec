"""Flows that go on in the background, with their journal in a row of a store."""
