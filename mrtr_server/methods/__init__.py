"""One function for each method of the protocol."""
