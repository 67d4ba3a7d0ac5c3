"""`python -m scripts.leaving`: clients that leave at random instants, under
applications that hold something. It shows what becomes of their requests with and
without `timeouts.abandoned`.

These are no kinds of `loadgen.conform`, though its clients play them: what becomes of a
request whose client has gone, no client sees, but the application.
"""
