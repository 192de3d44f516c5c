"""Starts the bot: `DISCORD_TOKEN=... python -m discord_bot`, in the folder above."""

from __future__ import annotations

import os
import sys

from .bot import Bot


def main() -> int:
    """Run until Ctrl-C."""
    token = os.environ.get("DISCORD_TOKEN")

    if not token:
        print("DISCORD_TOKEN is not set; README.md says where it comes from", file=sys.stderr)
        return 2

    Bot(os.environ.get("BOT_MODEL") or None).run(token)
    return 0


sys.exit(main())
