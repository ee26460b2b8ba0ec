"""What happens on a server, for clients that subscribe to it: the log of events, and their delivery."""
