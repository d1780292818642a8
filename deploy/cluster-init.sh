#!/bin/bash
# Run once by the image of PostgreSQL, for the primary of deploy/cluster.yaml.
set -euo pipefail
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" \
  --set standby="$REPLICATION_PASSWORD" --set turnpike="$TURNPIKE_PASSWORD" <<'SQL'
CREATE ROLE standby REPLICATION LOGIN PASSWORD :'standby';
CREATE ROLE turnpike LOGIN PASSWORD :'turnpike';
-- It may see the state of the standby, which /readyz shows.
GRANT pg_monitor TO turnpike;
CREATE DATABASE turnpike OWNER turnpike ENCODING 'UTF8' TEMPLATE template0;
SQL
echo 'host replication standby all scram-sha-256' >>"$PGDATA/pg_hba.conf"
