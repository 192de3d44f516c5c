"""Models behind one small protocol; `Provider` is in `base`, each wire dialect in a file of its own."""
