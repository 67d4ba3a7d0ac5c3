"""The idle connections of any running server, in any language, without touching it."""
