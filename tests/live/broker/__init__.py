"""The shipped broker configurations on a real mosquitto: the rules of the site, cell by cell, and the limits."""
