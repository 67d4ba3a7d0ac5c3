"""What the core costs."""
