"""The migrations, one file each, which names its predecessor. Released migrations are never changed."""
