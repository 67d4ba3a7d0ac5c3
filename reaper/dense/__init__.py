"""The law of the core at a few bytes per connection."""
