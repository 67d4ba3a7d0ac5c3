"""Pages as one HTML file each: for the pipeline, and for the load generator.

One rule: *a page loads nothing*, and this room imports nothing of the project. Read
`parts` (the document, and its style sheet), `charts` (inline SVG), `units` (numbers in
words).
"""
