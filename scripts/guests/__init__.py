"""What a live client may do, and what a dead one may cost: once, for every guest.

One rule: *a cell is a stock server and a guarded one in one run*. The guarded one loses
nothing that the stock one keeps, keeps nothing beyond its limit and a tick, and holds
no object more.
"""
