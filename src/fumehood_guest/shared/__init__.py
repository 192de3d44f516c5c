"""Code that several processes of the guest side share; it must not import modules of the other folders."""
