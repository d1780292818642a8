-- Writes before bytes are sent, and payments of external settlements. Twins: db/sqlite/settling.ts and
-- the inserts of db/sqlite/payments.ts.

-- A payment as a launch gives it. Its text is read in a fraction of the time of a JSON object. The order
-- is that of the columns in db/schema.ts.
CREATE TYPE new_payment AS (
  id text, method text, network text, chain_id bigint, asset text, payer text, payee text,
  amount_atomic text, nonce text, valid_after text, valid_before text, signature text, product text,
  protocol text, merchant text, route text, fingerprint text, resource text, idempotency_key text,
  challenge_id text, credential_hash text, client text, bound boolean, received_at bigint,
  known_block bigint, state text, transaction_hash text, log_index bigint, block_number bigint, delivery text,
  attempts bigint, upstream_status bigint, truncated boolean, answered boolean, redeem_token_hash text,
  redeem_until bigint, permit2612_value text, permit2612_deadline text, permit2612_signature text,
  ceiling_atomic text, facilitator text, nonce_used boolean, created_at bigint, confirmed_at bigint,
  delivered_at bigint
);

-- Signing is deterministic: an abandoned transaction returns with the same hash. Members keep the
-- order of `members`.
CREATE FUNCTION insert_transaction(transaction jsonb, members text[], lane_epoch bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  is_new boolean;
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
  WHERE transactions.state = 'replaced'
  -- Only a row that was there has an xmax: that of its update.
  RETURNING xmax = 0 INTO is_new;
  IF is_new THEN
    INSERT INTO transaction_members (transaction_hash, position, payment_id)
    SELECT transaction->>'hash', each.position - 1, each.id
    FROM unnest(members) WITH ORDINALITY AS each (id, position);
  ELSE
    INSERT INTO transaction_members (transaction_hash, position, payment_id)
    SELECT transaction->>'hash', each.position - 1, each.id
    FROM unnest(members) WITH ORDINALITY AS each (id, position)
    ON CONFLICT DO NOTHING;
  END IF;
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
    IF entry ? 'entitlement' THEN
      INSERT INTO entitlements
      SELECT * FROM jsonb_populate_record(NULL::entitlements, entry->'entitlement');
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

-- {fence, transaction, fresh: {new_payment}, with_rows: [{row, order? | authorization? | entitlement?}],
-- again: {id}, sorted, members: {id}, limits: [{id, funds, key?}]}. Texts in braces are arrays of PostgreSQL, which it reads in a
-- fraction of the time of JSON. `fresh` is in the order of the money, which is the same on every gateway:
-- launches with common money then wait for each other without a deadlock. `value`: {settled: [row]}.
CREATE FUNCTION launch(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  again text[] := input->>'again';
  resent text[];
  stored jsonb;
  settled jsonb := '[]';
BEGIN
  IF cardinality(again) > 0 THEN
    PERFORM 1 FROM payments WHERE id = ANY(again) ORDER BY id FOR NO KEY UPDATE;
    WITH changed AS (
      UPDATE payments
      SET state = 'broadcast', transaction_hash = input->'transaction'->>'hash'
      WHERE id = ANY(again) AND state = 'reverted'
      RETURNING id
    )
    SELECT array_agg(id) INTO resent FROM changed;
    IF cardinality(again) <> coalesce(cardinality(resent), 0) THEN
      RAISE EXCEPTION 'payment % is not to be sent again',
        (SELECT id FROM unnest(again) AS each (id) WHERE id <> ALL (coalesce(resent, '{}')) LIMIT 1);
    END IF;
  END IF;
  IF input->>'fresh' <> '{}' THEN
    INSERT INTO payments (
      id, method, network, chain_id, asset, payer, payee, amount_atomic, nonce, valid_after,
      valid_before, signature, product, protocol, merchant, route, fingerprint, resource,
      idempotency_key, challenge_id, credential_hash, client, bound, received_at, known_block, state,
      transaction_hash, log_index, block_number, delivery, attempts, upstream_status, truncated,
      answered, redeem_token_hash, redeem_until, permit2612_value, permit2612_deadline,
      permit2612_signature, ceiling_atomic, facilitator, nonce_used, created_at, confirmed_at,
      delivered_at
    )
    SELECT * FROM unnest((input->>'fresh')::new_payment[]);
  END IF;
  IF input->'with_rows' <> '[]' THEN
    FOR place IN 0 .. jsonb_array_length(input->'with_rows') - 1 LOOP
      stored := insert_with_rows(input->'with_rows'->place);
      IF stored IS NOT NULL THEN
        settled := settled || jsonb_build_array(stored);
      END IF;
    END LOOP;
  END IF;
  IF input->'limits' <> '[]' THEN
    PERFORM assert_funded(input->'limits');
  END IF;
  PERFORM insert_transaction(input->'transaction', (input->>'members')::text[], lane_epoch);
  RETURN jsonb_build_object('value', jsonb_build_object('settled', settled),
    'payments', to_jsonb(again));
END $$;

-- {launches: [...]} of one lane, by their nonces: all or none. `value` and `payments` as of `launch`.
CREATE FUNCTION launch_all(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  answer jsonb;
  settled jsonb := '[]';
  again jsonb := '[]';
BEGIN
  FOR place IN 0 .. jsonb_array_length(input->'launches') - 1 LOOP
    answer := launch(input->'launches'->place);
    settled := settled || (answer->'value'->'settled');
    again := again || (answer->'payments');
  END LOOP;
  RETURN jsonb_build_object('value', jsonb_build_object('settled', settled), 'payments', again);
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
  PERFORM insert_transaction(input->'transaction', '{}'::text[], lane_epoch);
  INSERT INTO jobs SELECT * FROM jsonb_populate_record(NULL::jobs, input->'job');
  INSERT INTO job_transactions (job_id, transaction_hash)
  VALUES (input->'job'->>'id', input->'job'->>'transaction_hash');
  IF rider->>'kind' = 'order' THEN
    ridden := to_jsonb(ride_order(rider, hash));
  ELSIF rider->>'kind' = 'grant' THEN
    ridden := to_jsonb(ride_grant(rider, hash));
  ELSIF rider->>'kind' = 'repay' THEN
    PERFORM ride_refund(rider);
  ELSIF rider->>'kind' = 'reserve' AND reserve_channel(rider)->'value' <> 'true' THEN
    PERFORM refuse('channel-changed', rider->>'id');
  END IF;
  RETURN jsonb_build_object('value', ridden);
END $$;

-- {row, order? | authorization? | entitlement?}. `value`: the row when it settles an authorization.
CREATE FUNCTION store_external(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_build_object('value', insert_with_rows(input),
    'payments', jsonb_build_array(input->'row'->'id'));
END $$;
