"""The HTTP server that the controller and the policy service share."""
