"""The verbs that find out what is wrong."""
