"""Was every reap right?

One rule: *each connection has exactly one verdict, and each row is counted*. `run` is
the story, in six steps: read, silences, judge, join, sum up, conclude. In the order of
these steps:

    command    the flags, and the request that they make
    run        the six steps by name, and what concludes them: pass, fail or
               inconclusive
    joined     what one side's journals say, and both sides of a connection in one row
    silences   silences beyond their timeout, one by one, and the stalls that excuse
    verdicts   the law of time as one expression
    account    every second of a connection: judged, or not, and then why
    sums       verdicts, lateness and offenders, counted
    words      every sentence that the audit says
"""

from ..doors import callable_room

callable_room(__name__)
