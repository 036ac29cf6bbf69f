-- What each role may do in the policy service's database on PostgreSQL. Run it as the owner of the database, after the
-- owner's first `gridchase policy jobs` has made the tables:
--
--   createuser --pwprompt gridchase; createuser --pwprompt policy_service; createuser --pwprompt policy_reader
--   createdb --owner gridchase gridchase
--   gridchase policy jobs --set store.url=postgresql://gridchase@db.example.org/gridchase --set store.password_file=…
--   psql --username gridchase --dbname gridchase --file policy-roles.sql
--
-- gridchase owns the tables. The operator uses it to upgrade them (again by `gridchase policy jobs`, then run this file
-- again), to import, and to delete jobs with `gridchase policy forget`. No service runs as gridchase.

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO policy_service, policy_reader;

-- The service: it adds jobs and trials and changes them, but deletes none. Claims, which tell which of several services
-- answers a request, live for ten minutes.
GRANT SELECT, INSERT, UPDATE ON jobs, trials TO policy_service;
GRANT SELECT, INSERT, DELETE ON claims TO policy_service;
GRANT SELECT ON alembic_version TO policy_service;

-- Dashboards read.
GRANT SELECT ON jobs, trials TO policy_reader;
