"""What is sealed in a store, and by which of the keys that are derived for a purpose each."""

TASK = "task"
OUTCOME = "outcome"
REPORT = "callback report"
LIVE_OUTCOME = "live outcome"
LIVE_ANSWER = "live answer"
LIVE_EVENT = "live event in the store"
LIVE_SESSION = "live session state"
