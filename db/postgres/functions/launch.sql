-- Writes before bytes are sent, and payments of external settlements. Twins: db/sqlite/launches.ts and
-- the inserts of db/sqlite/transactions.ts and jobs.ts.

-- Signing is deterministic: an abandoned transaction returns with the same hash. Members keep the
-- order of `members`.
CREATE FUNCTION insert_transaction(transaction jsonb, members jsonb, lane_epoch bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw, gas_limit,
    max_fee_wei, max_tip_wei, state, created_at, first_sent_at, block_number, cost_wei, epoch)
  VALUES (transaction->>'hash', transaction->>'network', transaction->>'relayer',
    (transaction->>'nonce')::bigint, transaction->>'kind', transaction->>'product',
    transaction->>'to', transaction->>'raw', transaction->>'gas_limit',
    transaction->>'max_fee_wei', transaction->>'max_tip_wei', transaction->>'state',
    (transaction->>'created_at')::bigint, (transaction->>'first_sent_at')::bigint,
    (transaction->>'block_number')::bigint, NULL, lane_epoch)
  ON CONFLICT (hash) DO UPDATE
  SET state = excluded.state, first_sent_at = excluded.first_sent_at, epoch = excluded.epoch
  WHERE transactions.state = 'replaced';
  IF members = '[]' THEN
    RETURN;
  END IF;
  INSERT INTO transaction_members (transaction_hash, position, payment_id)
  SELECT transaction->>'hash', each.position - 1, each.id
  FROM jsonb_array_elements_text(members) WITH ORDINALITY AS each (id, position)
  ORDER BY each.position
  ON CONFLICT DO NOTHING;
END $$;

-- Inserts a payment with the rows of its product. Returns the row of a payment that settles an
-- authorization, which differs from the given one, and NULL for others. A refusal names the payment.
CREATE FUNCTION insert_with_rows(entry jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  stored jsonb := entry->'row';
BEGIN
  BEGIN
    IF entry ? 'authorization' THEN
      stored := settle_authorization(stored);
      -- What was delivered must be settled, even when another payment has taken the buyer's own key.
      IF stored->>'idempotency_key' IS NOT NULL AND key_owner(stored) IS NOT NULL THEN
        stored := stored || '{"idempotency_key": null}';
      END IF;
    END IF;
    INSERT INTO payments SELECT * FROM jsonb_populate_record(NULL::payments, stored);
    IF entry ? 'order' THEN
      PERFORM insert_order(entry->'order', stored->>'id', stored->>'transaction_hash');
    END IF;
  EXCEPTION WHEN SQLSTATE 'TP001' THEN
    PERFORM refuse(SQLERRM, stored->>'id');
  END;
  RETURN CASE WHEN entry ? 'authorization' THEN stored END;
END $$;

-- The payment that has the buyer's own key of this row.
CREATE FUNCTION key_owner(payment jsonb) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT id FROM payments
  WHERE merchant = payment->>'merchant' AND route = payment->>'route'
    AND lower(payer) = lower(payment->>'payer')
    AND idempotency_key = payment->>'idempotency_key' AND idempotency_key IS NOT NULL
    AND state <> 'expired'
$$;

-- {fence, transaction, fresh: [row], with_rows: [{row, order? | authorization?}], again: [id],
-- members: [id], limits: [{id, funds}]}. `value`: {settled: [row]}.
CREATE FUNCTION launch(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  hash text := input->'transaction'->>'hash';
  again text[] := ARRAY(SELECT jsonb_array_elements_text(input->'again') AS id ORDER BY id);
  resent text[];
  entry jsonb;
  stored jsonb;
  settled jsonb := '[]';
BEGIN
  IF cardinality(again) > 0 THEN
    PERFORM 1 FROM payments WHERE id = ANY(again) ORDER BY id FOR NO KEY UPDATE;
    WITH changed AS (
      UPDATE payments SET state = 'broadcast', transaction_hash = hash
      WHERE id = ANY(again) AND state = 'reverted'
      RETURNING id
    )
    SELECT array_agg(id) INTO resent FROM changed;
    IF cardinality(again) <> coalesce(cardinality(resent), 0) THEN
      RAISE EXCEPTION 'payment % is not to be sent again',
        (SELECT id FROM unnest(again) AS each (id) WHERE id <> ALL (coalesce(resent, '{}')) LIMIT 1);
    END IF;
  END IF;
  -- In the order of the money, which is the same on every gateway: launches with common money then
  -- wait for each other without a deadlock.
  IF input->'fresh' <> '[]' THEN
    INSERT INTO payments
    SELECT * FROM jsonb_populate_recordset(NULL::payments, input->'fresh')
    ORDER BY network, lower(asset), lower(payer), nonce;
  END IF;
  FOR entry IN SELECT value FROM jsonb_array_elements(input->'with_rows') LOOP
    stored := insert_with_rows(entry);
    IF stored IS NOT NULL THEN
      settled := settled || jsonb_build_array(stored);
    END IF;
  END LOOP;
  IF input->'limits' <> '[]' THEN
    PERFORM assert_funded(input->'limits');
  END IF;
  PERFORM insert_transaction(input->'transaction', input->'members', lane_epoch);
  RETURN jsonb_build_object('value', jsonb_build_object('settled', settled),
    'payments', to_jsonb(again));
END $$;

-- {fence, transaction, job, rider: null | {kind, ...}}. `value`: what the rider returned.
CREATE FUNCTION launch_job(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  hash text := input->'transaction'->>'hash';
  rider jsonb := input->'rider';
  ridden jsonb;
BEGIN
  -- Its state decides, so a reorganisation waits. Before the rows of later tables.
  IF rider->>'confirmed' IS NOT NULL THEN
    PERFORM 1 FROM payments WHERE id = rider->>'confirmed' FOR SHARE;
  END IF;
  PERFORM insert_transaction(input->'transaction', '[]', lane_epoch);
  INSERT INTO jobs SELECT * FROM jsonb_populate_record(NULL::jobs, input->'job');
  INSERT INTO job_transactions (job_id, transaction_hash)
  VALUES (input->'job'->>'id', input->'job'->>'transaction_hash');
  IF rider->>'kind' = 'order' THEN
    ridden := to_jsonb(ride_order(rider, hash));
  ELSIF rider->>'kind' = 'grant' THEN
    ridden := to_jsonb(ride_grant(rider, hash));
  END IF;
  RETURN jsonb_build_object('value', ridden);
END $$;

-- {row, order? | authorization?}. `value`: the row when it settles an authorization.
CREATE FUNCTION store_external(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_build_object('value', insert_with_rows(input),
    'payments', jsonb_build_array(input->'row'->'id'));
END $$;
