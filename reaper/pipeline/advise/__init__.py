"""Which timeout, tick and wheel size this traffic wants."""
