"""Small parts that the controller and the policy service both need."""
