"""Quiet streams behind nginx and HAProxy: which are cut, and when a proxy lets go of
one whose reader has left.

*Only the readers and the server's kernel judge.* `python -m scripts.streams` measures
the table of docs/howto/streams.md; the campaign's trial "quiet streams" is made of the
same parts.

These readers are no kinds of `loadgen.conform`: some have a network namespace of their
own, and vanish with its link; or ten thousand come from one process, where a task for
each would hear its end late.
"""
