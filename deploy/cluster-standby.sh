#!/bin/bash
# Starts the standby of deploy/cluster.yaml: copies the primary once, then follows it.
set -euo pipefail
umask 077
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  export PGPASSWORD="$REPLICATION_PASSWORD"
  # --write-recovery-conf keeps the password and the name by which the primary waits for it.
  pg_basebackup --dbname "host=primary user=standby application_name=standby" \
    --pgdata "$PGDATA" --wal-method stream --write-recovery-conf
fi
exec postgres
