"""`python -m scripts.leaving`: clients that leave at random instants, under
applications that hold something. It shows what becomes of their requests with and
without `timeouts.abandoned`.
"""
