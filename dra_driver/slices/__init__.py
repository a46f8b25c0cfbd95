"""What the scheduler may choose from, and the publisher that keeps the API server equal to it."""
