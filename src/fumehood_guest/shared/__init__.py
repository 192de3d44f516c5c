"""What more than one process of the guest side uses; imports nothing of the other folders."""
