"""What hand-written keepers lose, beside reaper's: five kinds that are found again and
again, and one workload for all.

    kinds   the five kinds, each as short as projects write it
    load    callers on the real clock, in all worlds, and an account beside them

The rule of this room: *the account is told what happened, and asks no keeper*.
"""
