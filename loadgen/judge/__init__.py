"""What was seen against what was planned."""
