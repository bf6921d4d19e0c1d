"""A plan's JSON checked by code that shares nothing with what made it."""
