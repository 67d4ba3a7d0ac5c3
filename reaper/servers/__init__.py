"""Servers of other packages, guarded: one module per server. None is imported unless you ask for
it.
"""
