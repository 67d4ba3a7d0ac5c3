"""Charts and style sheets of the pages: inline SVG, nothing to load."""
