"""What replicas share: redeemed states, values, tasks, and news of changes."""
