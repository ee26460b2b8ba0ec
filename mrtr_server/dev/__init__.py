"""`mrtr-server dev`: serve an application while its author changes it, and show what happens in it."""
