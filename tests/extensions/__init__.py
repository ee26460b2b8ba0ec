"""Extensions of the protocol, with the real programs of the other side."""
