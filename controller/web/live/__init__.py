"""What is known of the site now: the newest message of each topic, and who is told when it changes."""
