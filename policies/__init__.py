"""What to do: decisions as functions of their arguments, and where signals come from."""
