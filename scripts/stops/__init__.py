"""Stops of real servers, stock and guarded: what becomes of what is open.

*Only clients judge*: when each stream was told, how it ended, whether each answer
arrived whole, and when the process was gone. `python -m scripts.stops` measures, and
writes the table of the pages that are named after what a hanging stop prints.

The kinds of `loadgen.conform.kinds_ends` judge who is there at a stop, one client a
kind. This is no kind of theirs because it counts: a thousand streams at once, how they
end over a window, what the server's log says, and which process serves after a reload.
"""
