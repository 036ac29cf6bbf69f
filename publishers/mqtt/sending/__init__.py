"""What is sent: kept until it is delivered, and dropped where the broker does not take it."""
