"""What people do on the pages: they sign in, order what runs do, and see what has become of it."""
