"""Stops of real servers, stock and guarded: what becomes of what is open.

*Only clients judge*: when each stream was told, how it ended, whether each answer
arrived whole, and when the process was gone. `python -m scripts.stops` measures, and
writes the table of the pages that are named after what a hanging stop prints.
"""
