"""What journals tell, read with Spark: the proof that the law of time held, and the timeouts your traffic wants.

    cli.py cli_*.py arguments.py   the commands and what their arguments have in common
    session.py    one Spark session a command, and Java named when it is missing
    inputs.py     each file checked before Spark sees it: taken, or put aside with a reason
    frames.py     events as a DataFrame; one row per connection
    verdicts.py joined.py   the law as one expression; both sides of a connection in one row
    audit.py      the audit: verdicts, lateness, offenders, clocks
    survival.py   Kaplan-Meier, on small frames
    requests.py   access logs of nginx, HAProxy, Envoy and Apache as silences
    traffic.py    silences and open connections, counted under every candidate timeout
    advise.py     the trade-off, the recommendation, reaper.toml
    live.py       Structured Streaming over a growing journal
    charts.py page.py   the report: inline SVG, one HTML file

Nothing imports this package. Of the library it imports the journal's schema alone.
"""
