"""uvicorn's own HTTP protocol, with bounds on requests, and with less work for each. Nothing else knows its insides."""
