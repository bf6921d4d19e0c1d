"""What a user writes: a spec, run once, gives a Program. Knows no machine and no target."""
