"""Pages as one HTML file each: for the pipeline, and for the load generator.

One rule: *a page loads nothing*, and this room imports of the project nothing but
`errors`. Read `parts` (the document, and its style sheet), `charts` (inline SVG),
`units` (numbers in words).
"""
