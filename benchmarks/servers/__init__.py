"""Whole servers, compared: an exchange in instructions, a request in CPU time, an idle
connection in memory.
"""
