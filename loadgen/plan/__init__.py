"""Who does what, when, and how it must end: drawn before the first packet."""
