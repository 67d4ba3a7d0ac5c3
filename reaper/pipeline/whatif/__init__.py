"""A journal replayed under other settings."""
