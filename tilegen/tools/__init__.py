"""What people look at: explain, timelines, pictures."""
