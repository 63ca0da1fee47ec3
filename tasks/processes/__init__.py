"""What every stage process shares: how it starts, how it fails, and that it never outlives its parent."""
