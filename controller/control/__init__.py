"""Control of a run's power limit: leader or follower, power curve, plan, GPU group."""
