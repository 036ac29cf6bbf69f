"""A run as a trial of a batch size: what the policy service is asked, and how the untimed ones are timed."""
