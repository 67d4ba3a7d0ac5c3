"""Stacks of HTTP/2 that others wrote, whose users lag: what each loses of a stock
server and of a guarded one.
"""
