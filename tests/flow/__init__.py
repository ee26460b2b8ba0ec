"""One round against a journal, and the rules that hold over all rounds."""
