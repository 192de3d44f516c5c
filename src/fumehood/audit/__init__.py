"""What happened in and around a sandbox, written down so that later changes show."""
