"""The examples hold what their first lines promise, and so do the scripts that show them."""
