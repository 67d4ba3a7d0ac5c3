"""Pages as one HTML file each.

One rule: *a page loads nothing*. Read `parts` (the document), `charts` (inline SVG), `style` (the colours).
"""
