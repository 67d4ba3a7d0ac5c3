"""What we are compared with: every other way to know which connection has fallen silent, behind one interface.

One rule: each peer is first held to its task by a test; a structure that expires nothing costs nothing.

Read: `peer` (the interface), `ours`, `structures`, `loops`, `trio_thread` (Python), `jvm_process` and `jvm` (Java),
`table` (all of them).
"""
