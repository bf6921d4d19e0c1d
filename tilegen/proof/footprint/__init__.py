"""What each CTA of a tile reads and writes, worked out anew from the ops of a plan."""
