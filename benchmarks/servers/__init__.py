"""Whole servers, compared: what an idle connection and a request cost, ours and those of others.

One rule: a server's own CPU time and memory are what counts, read from outside, with every server in the same run.

Read: `apps` and `bare` (what is served), `process` (how each is started and looked at), `run` (idle memory and busy
requests), `burst` (thousands of clients at once), `resting` (clients that do nothing), `pauses` (the longest pass),
`command` (what these four share), `echo` (with reaper and without), `loadgen_cost` (the client).
"""
