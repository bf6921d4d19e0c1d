"""Speed beside others in the same run."""
