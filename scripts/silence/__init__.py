"""What ten servers do with silence: `python -m scripts.silence`.

One rule: *each server is as its makers, or Debian, ship it*, but for its limits: each
that it has is three seconds.
"""
