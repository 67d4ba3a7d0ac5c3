"""The law of the core at a few bytes per connection, where connections are numbered as descriptors are.

Read in this order:

    lanes       what connections of one kind share, and where the long silent ones are noted
    search      when an epoch is due, and who of it has been silent since
    reaper      DenseReaper: registering, touching, looking in
    lease       a handle that keeps nothing alive
    invariants  what must always hold
"""
