"""Pages as one HTML file each.

One rule: *a page loads nothing*. Read `parts` (the document, and its style sheet), `charts` (inline
SVG).
"""
