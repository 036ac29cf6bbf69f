"""The web side: charts and pages for people, drawn on the server, with no script."""
