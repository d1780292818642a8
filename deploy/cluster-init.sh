#!/bin/bash
# Run once by the image of PostgreSQL, for the primary of deploy/cluster.yaml.
set -euo pipefail
psql --set ON_ERROR_STOP=1 --set password="$REPLICATION_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE standby REPLICATION LOGIN PASSWORD :'password';
-- For the state of the standby in /readyz.
GRANT pg_monitor TO CURRENT_USER;
SQL
echo 'host replication standby all scram-sha-256' >>"$PGDATA/pg_hba.conf"
