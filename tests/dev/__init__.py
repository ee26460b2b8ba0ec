"""What an author sees while writing a server."""
