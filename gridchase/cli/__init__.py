"""The command line: the verbs that need the base install alone, and the table of all."""
