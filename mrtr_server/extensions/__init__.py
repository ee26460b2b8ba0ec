"""Extensions of the protocol: a module has all that is of one."""
