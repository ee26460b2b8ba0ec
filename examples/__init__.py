"""Small servers to copy from. The first lines of each say how to run it and how to try it with curl.

Run them from the directory above this one. The curl lines name no protocol version, so they are served in the form of
the drafts; a client that sends `MCP-Protocol-Version` gets the ratified one from the same server.
"""
