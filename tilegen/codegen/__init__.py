"""What the text of all targets shares: schedule, epilogues, the Jinja environment."""
