-- A failover to a server that lacks the last commits: the holder of a lane raises it above what it
-- knows, and writes again what it drives there. Without a twin, because a file does not go back.

-- A payment of a slot as it was written, unless the database has it or its money was paid or authorized
-- since the failover. What is refused must not keep the others from being written. {row, order?}
CREATE FUNCTION restore_payment(entry jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  row jsonb := entry->'row';
BEGIN
  IF EXISTS (SELECT 1 FROM payments WHERE id = row->>'id') THEN
    RETURN;
  END IF;
  -- The charge that it settles may be lost, too.
  UPDATE authorizations
  SET state = 'metered', charge_atomic = row->>'amount_atomic', units = '{}'
  WHERE id = row->>'id' AND state = 'authorized';
  UPDATE authorizations SET state = 'sent' WHERE id = row->>'id' AND state = 'metered';
  INSERT INTO payments SELECT * FROM jsonb_populate_record(NULL::payments, row);
  IF entry ? 'order' THEN
    PERFORM insert_order(entry->'order', row->>'id', row->>'transaction_hash');
  END IF;
EXCEPTION WHEN unique_violation OR check_violation OR SQLSTATE 'TP001' OR SQLSTATE 'TP003'
  OR SQLSTATE 'TP004' THEN
  RAISE WARNING 'payment % is not restored: %', row->>'id', SQLERRM;
END $$;

-- What was given by a job, unless the database has it. No limit of the day refuses it any more.
CREATE FUNCTION restore_grant(rider jsonb, hash text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ride_grant(rider || '{"grants": 9007199254740991, "wei": "1e60", "isSigned": true}', hash);
EXCEPTION WHEN SQLSTATE 'TP001' THEN
  NULL;
END $$;

-- {transactions: [row], the oldest first; payments: [{row, order?}]; job: row | null; grant: rider of
-- the job | null}
CREATE FUNCTION restore_slot(slot jsonb, lane_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  newest text := slot->'transactions'->-1->>'hash';
  ids text[];
  entry jsonb;
BEGIN
  FOR entry IN SELECT value FROM jsonb_array_elements(slot->'payments') LOOP
    PERFORM restore_payment(entry);
  END LOOP;
  SELECT coalesce(array_agg(payments.id ORDER BY payments.id), '{}') INTO ids
  FROM jsonb_array_elements(slot->'payments') AS given (entry)
  JOIN payments ON payments.id = given.entry->'row'->>'id';
  UPDATE payments SET state = 'broadcast', transaction_hash = newest
  WHERE id = ANY(ids) AND state IN ('broadcast', 'reverted');
  FOR entry IN SELECT value FROM jsonb_array_elements(slot->'transactions') LOOP
    PERFORM insert_transaction(entry, ids, lane_epoch);
  END LOOP;
  IF slot->'job' <> 'null' THEN
    INSERT INTO jobs SELECT * FROM jsonb_populate_record(NULL::jobs, slot->'job')
    ON CONFLICT DO NOTHING;
    INSERT INTO job_transactions (job_id, transaction_hash)
    SELECT slot->'job'->>'id', sent->>'hash'
    FROM jsonb_array_elements(slot->'transactions') AS sent
    ON CONFLICT DO NOTHING;
    UPDATE jobs SET transaction_hash = newest
    WHERE id = slot->'job'->>'id' AND state = 'broadcast';
  END IF;
  IF slot->'grant' <> 'null' THEN
    PERFORM restore_grant(slot->'grant', newest);
  END IF;
END $$;

-- {network, relayer, holder, read: the epoch that was read, epoch and nonce as the holder knows them,
-- slots}. Returns the lane, or null when it is another one's by now.
CREATE FUNCTION restore_lane(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  raised lanes;
  slot jsonb;
BEGIN
  UPDATE lanes
  SET holder = (input->>'holder')::uuid, epoch = (input->>'epoch')::bigint + 1,
    next_nonce = GREATEST(next_nonce, (input->>'nonce')::bigint)
  WHERE network = input->>'network' AND relayer = input->>'relayer'
    AND epoch = (input->>'read')::bigint
  RETURNING * INTO raised;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  FOR slot IN SELECT value FROM jsonb_array_elements(input->'slots') LOOP
    PERFORM restore_slot(slot, raised.epoch);
  END LOOP;
  RETURN jsonb_build_object('epoch', raised.epoch, 'next_nonce', raised.next_nonce);
END $$;
