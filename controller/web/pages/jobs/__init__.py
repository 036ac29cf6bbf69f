"""The pages of jobs: what the policy service has learnt of their batch sizes."""
