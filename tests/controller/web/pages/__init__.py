"""The pages of a site."""
