"""The page for people: it shows what a server offers, and calls it round by round."""
