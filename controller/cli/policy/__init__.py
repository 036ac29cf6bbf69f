"""`gridchase policy`: the policy service, and what it has learned."""
