"""People sign in on the pages, and order what runs do."""
