"""How providers write tools, calls and answers: pure translation between their words and ours, without any SDK."""
