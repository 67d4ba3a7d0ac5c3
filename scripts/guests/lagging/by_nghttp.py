"""`python -m scripts.guests.lagging.by_nghttp PORT DOWNLOADS BYTES SECONDS PIECE`:
nghttp, which stands still for as long as nobody reads what it prints. It prints a line
of JSON: how many requests it `asked`, and how many it `lost`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def lost(port: int, downloads: int, size: int, late: int, piece: int) -> int:
    """How many of the requests nghttp lost."""
    base = f"https://127.0.0.1:{port}"
    # It asks for no address twice: each is written in another way.
    paths = [f"{base}/some?{size}.{'0' * place}" for place in range(1, downloads + 1)]
    words = ["nghttp", f"{base}/slow?{late + 1}", *paths]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0)
    assert asking.stdout is not None
    time.sleep(late)
    said = zeros = 0
    while data := asking.stdout.read(piece):
        zeros += data.count(0)
        said += len(data) - data.count(0)
    if asking.wait():
        return downloads + 1
    return downloads - zeros // size + int(said != len(b"hello"))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    print(json.dumps({"asked": given[1] + 1, "lost": lost(*given)}))
