-- Orders of the stock desk. Twin: db/sqlite/orders.ts.
-- Texts of the tables are compared by their bytes, so ids sort as on SQLite.

-- Makes the change of a rule of db/orders.ts; NULL when the order is in another state.
-- change: {"from": [states], "is": {column: value}, "has": [columns that are not null],
-- "set": {column: value}, "hashed": [columns that become the hash]}.
CREATE FUNCTION change_order(of_order text, change jsonb, hash text DEFAULT NULL) RETURNS orders
LANGUAGE plpgsql AS $$
DECLARE
  before orders;
  after orders;
  known jsonb;
BEGIN
  SELECT * INTO before FROM orders WHERE id = of_order FOR NO KEY UPDATE;
  known := to_jsonb(before);
  IF NOT FOUND OR NOT change->'from' ? before.state OR NOT known @> (change->'is')
    OR NOT jsonb_strip_nulls(known) ?& ARRAY(SELECT jsonb_array_elements_text(change->'has'))
  THEN
    RETURN NULL;
  END IF;
  after := jsonb_populate_record(before, change->'set' || coalesce(
    (SELECT jsonb_object_agg(name, hash) FROM jsonb_array_elements_text(change->'hashed') AS name),
    '{}'));
  UPDATE orders
  SET state = after.state,
    settlement_tx = after.settlement_tx,
    swap_tx = after.swap_tx,
    refund_tx = after.refund_tx,
    delivered_atomic = after.delivered_atomic,
    returned_atomic = after.returned_atomic,
    refund_reason = after.refund_reason,
    held_reason = after.held_reason,
    refund_attempts = after.refund_attempts,
    retry_at = after.retry_at,
    updated_at = after.updated_at,
    settled_at = after.settled_at
  WHERE id = of_order;
  RETURN after;
END $$;

-- The value of a change: the order, and the asset of its payment when an event needs it.
CREATE FUNCTION changed_order(changed orders) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF changed.id IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object(
    'order', to_jsonb(changed),
    'asset', (SELECT asset FROM payments WHERE id = changed.payment_id));
END $$;

-- input: {"id": ..., "change": of change_order}. value: of changed_order.
CREATE FUNCTION move_order(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_build_object(
    'value', changed_order(change_order(input->>'id', input->'change')));
END $$;

-- The order of a new payment, after the payment's row. The lock of the payer makes the count exact:
-- the statement after it sees the orders that others have committed.
-- The count of all payers has no lock, because gateways would wait for each other: orders that commit at
-- the same time may exceed it.
-- rows: {"order": row, "quota": {"payer", "since", "max", "all": {"since", "max"} or absent} or null}.
CREATE FUNCTION insert_order(rows jsonb, of_payment text, hash text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  quota jsonb := nullif(rows->'quota', 'null');
  buyer text := lower(rows->'order'->>'payer');
  counted bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(buyer, 0));
  IF quota IS NOT NULL THEN
    SELECT count(*) FILTER (
        WHERE id > quota->>'since' AND refund_reason IS NOT NULL
      ) + count(*) FILTER (WHERE state IN ('settling', 'settled', 'swapping'))
    INTO counted FROM orders WHERE lower(payer) = buyer;
    IF counted >= (quota->>'max')::bigint THEN
      PERFORM refuse('order-quota', of_payment);
    END IF;
    IF quota ? 'all' THEN
      SELECT count(*) INTO counted FROM orders
      WHERE id > quota->'all'->>'since' AND refund_reason IS NOT NULL
        OR state IN ('settling', 'settled', 'swapping');
      IF counted >= (quota->'all'->>'max')::bigint THEN
        PERFORM refuse('refund-share', of_payment);
      END IF;
    END IF;
  END IF;
  INSERT INTO orders
  SELECT * FROM jsonb_populate_record(NULL::orders, rows->'order' || jsonb_build_object(
    'payment_id', of_payment, 'settlement_tx', hash));
END $$;

-- The move of an order that is written with its job; value of changed_order. The shared locks keep
-- what was found until the job is committed. Call it before the rows of the job are written, because
-- payments are locked before jobs.
-- rider: {"id", "change", "confirmed": id of a payment, "withoutEffect": [ids of jobs]}.
CREATE FUNCTION ride_order(rider jsonb, hash text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  changed orders;
BEGIN
  IF rider->>'confirmed' IS NOT NULL THEN
    PERFORM 1 FROM payments
    WHERE id = rider->>'confirmed' AND state = 'confirmed' FOR SHARE;
    IF NOT FOUND THEN
      PERFORM refuse('payment-not-confirmed', rider->>'id');
    END IF;
  END IF;
  PERFORM 1 FROM jobs
  WHERE id IN (SELECT jsonb_array_elements_text(rider->'withoutEffect'))
  ORDER BY id FOR SHARE;
  IF EXISTS (
    SELECT FROM jsonb_array_elements_text(rider->'withoutEffect') AS needed(id)
    WHERE NOT EXISTS (
      SELECT FROM jobs WHERE jobs.id = needed.id AND jobs.state IN ('failed', 'replaced'))
  ) THEN
    PERFORM refuse('job-may-have-effect', rider->>'id');
  END IF;
  changed := change_order(rider->>'id', rider->'change', hash);
  IF changed.id IS NULL THEN
    PERFORM refuse('order-changed', rider->>'id');
  END IF;
  RETURN changed_order(changed);
END $$;
