"""A bot for Discord that runs code in sandboxes: `python -m discord_bot` in the folder above."""
