"""Code that several processes of the guest side share; it must import nothing of the other folders."""
