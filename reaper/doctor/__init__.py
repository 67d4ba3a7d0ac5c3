"""`reaper doctor`: looks at a running server, closes nothing, and says what is wrong
with it.

The rule of this room: *a finding can be acted on*. It has words for somebody who cannot
name the trouble, the evidence that was seen, and one command that mends it. What was
not seen is not said.

One examination is two looks with a pause between them, because most trouble is
something that stays: a connection that is half closed for a moment is normal, and one
that still is after the pause was forgotten. `looking` makes the looks, from what
`reaper.attach` asks of the kernel and from /proc; `facts` is what a look shows, without
a clock or a socket; `findings` is the table of troubles, a row for each, with a pure
function that finds it in two looks; `proxies` compares a keep-alive timeout with the
proxy in front; `mending` does what `--mend` says; `command` has the flags, and `show`
prints.
"""
