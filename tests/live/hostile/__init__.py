"""A hostile tenant beside an honest job: the shipped broker of a site, a real controller, an attacker.

`python -m tests.live.hostile` runs every attempt and prints the table of docs/hostile-tenant.md; the tests run some.
"""
