"""The server of websockets, guarded: by `create_connection=`, or by `reaper run`."""
