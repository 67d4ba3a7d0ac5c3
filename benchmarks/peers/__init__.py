"""What reaper is compared with: `python` (structures and event loops), `jvm` (Netty's
wheel).
"""
