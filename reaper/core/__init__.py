"""Who is due, and when: no clock, no I/O, no framework. Imports nothing of the library but `errors`."""
