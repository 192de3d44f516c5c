"""A chat with an agent in the user's terminal; `session` is where it begins."""
