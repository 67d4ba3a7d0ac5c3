"""docs/performance.md."""
