"""Templates from container images: pulled, unpacked and built without any container tool.

Runs in the process that builds a template. What an image holds is hostile: only digests, sizes and bounded JSON of it
are read here; archives are parsed, and programs run, by jailed processes (`fumehood_guest.image`).
"""
