"""Who calls, by the bearer token of the request."""
