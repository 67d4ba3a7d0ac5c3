"""A handler for `aiosmtpd -c smtp.Slow`: a message is taken late."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any


class Slow:
    @classmethod
    def from_cli(cls, parser: argparse.ArgumentParser, *arguments: str) -> Slow:
        return cls()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        await asyncio.sleep(float(os.environ["SLOW"]))
        return "250 kept"
