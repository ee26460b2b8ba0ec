"""A client's side of the wire, for the client of programs and the test kit."""
