"""What a user calls: a compiled plan on a CPU, on a GPU, in several launches, or as files."""
