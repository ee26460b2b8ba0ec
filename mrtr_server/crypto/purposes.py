"""What is sealed in a store, and by which of the keys that are derived for a purpose each."""

TASK = "task"
OUTCOME = "outcome"
REPORT = "callback report"
