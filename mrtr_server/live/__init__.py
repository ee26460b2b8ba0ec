"""Calls that stay open while the client answers: their ids, their answers, and what a session has set."""
