"""The steps. Each file is one, and knows the one before it; none is changed once it was released."""
