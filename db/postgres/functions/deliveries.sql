-- The delivery of payments. Twin: `createDeliveryStatements` of db/sqlite/payments.ts. `by` is the gateway that
-- delivers, or null: then no other gateway's delivery is taken or ended. Changes of the same kind share
-- a call; `value` has a member for each id that was changed.

-- {by, items: [{id, attempts: that the caller has counted, or null}]}. Begins deliveries that no live
-- gateway has, so the attempts of several gateways stay within the limit, and of payments without a refund,
-- which the lock lets it see. `value`: the rows by id.
CREATE FUNCTION begin_delivery(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deliverer uuid := (input->>'by')::uuid;
  ids text[] := ARRAY(SELECT value->>'id' FROM jsonb_array_elements(input->'items'));
  rows jsonb;
BEGIN
  PERFORM 1 FROM payments WHERE id = ANY(ids) ORDER BY id FOR NO KEY UPDATE;
  WITH begun AS (
    UPDATE payments
    SET delivery = 'delivering', attempts = payments.attempts + 1, delivering_by = deliverer
    FROM jsonb_to_recordset(input->'items') AS given (id text, attempts bigint)
    WHERE payments.id = given.id AND state = 'confirmed'
      AND (given.attempts IS NULL OR given.attempts = payments.attempts)
      AND (delivery = 'none' OR (delivery = 'delivering' AND (
        delivering_by IS NULL OR delivering_by = deliverer
        OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = delivering_by))))
      AND NOT EXISTS (SELECT 1 FROM refunds WHERE refunds.payment_id = payments.id)
    RETURNING payments.*
  )
  SELECT coalesce(jsonb_object_agg(begun.id, to_jsonb(begun)), '{}') INTO rows FROM begun;
  RETURN jsonb_build_object('value', rows);
END $$;

-- {by, ids, statuses, flags: whether it is truncated, times}, each in braces. A stream is recorded at its
-- first byte and corrected when it is cut. May run twice.
CREATE FUNCTION deliver(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deliverer uuid := input->>'by';
  ids text[] := input->>'ids';
  statuses bigint[] := input->>'statuses';
  flags boolean[] := input->>'flags';
  times bigint[] := input->>'times';
  delivered jsonb;
BEGIN
  IF cardinality(ids) > 1 THEN
    PERFORM lock_payments(ids);
  END IF;
  WITH changed AS (
    UPDATE payments
    SET delivery = 'delivered', upstream_status = sent.status, truncated = sent.truncated,
      delivered_at = coalesce(delivered_at, sent.at), delivering_by = NULL
    FROM unnest(ids, statuses, flags, times) AS sent (id, status, truncated, at)
    WHERE payments.id = sent.id AND delivery IN ('delivering', 'delivered')
      AND (deliverer IS NULL OR delivering_by IS NULL OR delivering_by = deliverer)
    RETURNING payments.id
  )
  SELECT coalesce(jsonb_object_agg(id, true), '{}') INTO delivered FROM changed;
  RETURN jsonb_build_object('value', delivered);
END $$;

-- {id, status, hash, until, by}. `value`: the row, or null.
CREATE FUNCTION fail_delivery(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deliverer uuid := (input->>'by')::uuid;
  failed payments;
BEGIN
  UPDATE payments
  SET delivery = 'none', upstream_status = (input->>'status')::bigint,
    redeem_token_hash = input->>'hash', redeem_until = (input->>'until')::bigint,
    delivering_by = NULL
  WHERE id = input->>'id' AND delivery = 'delivering'
    AND (deliverer IS NULL OR delivering_by IS NULL OR delivering_by = deliverer)
  RETURNING * INTO failed;
  RETURN jsonb_build_object('value', CASE WHEN failed.id IS NOT NULL THEN to_jsonb(failed) END);
END $$;

-- {items: [{id, at}]}
CREATE FUNCTION hand_over(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  ids text[] := ARRAY(SELECT value->>'id' FROM jsonb_array_elements(input->'items'));
  handed jsonb;
BEGIN
  PERFORM lock_payments(ids);
  WITH changed AS (
    UPDATE payments
    SET delivery = 'delivered', attempts = attempts + 1, delivered_at = given.at
    FROM jsonb_to_recordset(input->'items') AS given (id text, at bigint)
    WHERE payments.id = given.id AND state = 'confirmed' AND delivery = 'none'
    RETURNING payments.id
  )
  SELECT coalesce(jsonb_object_agg(id, true), '{}') INTO handed FROM changed;
  RETURN jsonb_build_object('value', handed);
END $$;

-- {items: [{id}]}
CREATE FUNCTION mark_answered(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  ids text[] := ARRAY(SELECT value->>'id' FROM jsonb_array_elements(input->'items'));
BEGIN
  PERFORM lock_payments(ids);
  UPDATE payments SET answered = true WHERE id = ANY(ids);
  RETURN '{"value": {}}';
END $$;
