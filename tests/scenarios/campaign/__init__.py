"""The fault campaign on virtual time: random schedules of faults, after which no limit may be stranded."""
