"""What is known of the site now."""
