"""The command line: arguments, the wiring of adapters, and what each verb prints."""
