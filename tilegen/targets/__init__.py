"""Where plans run, a slice a target; and which of them a word means."""
