-- Money that goes back to payers. Twin: db/sqlite/refunds.ts.

-- {payment, amount: null for all, row, per_day, from, to: the UTC day}. The commit has the lock `refunds`, so
-- that the sum of the day is exact. The lock of the payment makes a delivery wait, which then finds the
-- refund. `value`: how it ended.
CREATE FUNCTION request_refund(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  paid payments;
  amount numeric;
BEGIN
  IF EXISTS (SELECT 1 FROM refunds WHERE payment_id = input->>'payment') THEN
    RETURN '{"value": "exists"}';
  END IF;
  SELECT * INTO paid FROM payments WHERE id = input->>'payment' FOR NO KEY UPDATE;
  IF (paid.state = 'confirmed' AND paid.product = 'gateway' AND paid.method <> 'channel') IS NOT TRUE THEN
    RETURN '{"value": "not-confirmed"}';
  END IF;
  amount := coalesce(input->>'amount', paid.amount_atomic);
  IF amount < 1 OR amount > paid.amount_atomic::numeric THEN
    RETURN '{"value": "too-much"}';
  END IF;
  IF input->'row'->>'reason' = 'undelivered' AND (paid.delivery = 'delivered'
    OR paid.delivery = 'delivering' AND EXISTS (
      SELECT 1 FROM gateways WHERE gateways.id = paid.delivering_by)
    OR EXISTS (SELECT 1 FROM entitlements AS used WHERE used.uses > 0
      AND used.id IN ('again|' || paid.id, 'pass|' || paid.id))) THEN
    RETURN '{"value": "delivered"}';
  END IF;
  IF amount + (
    SELECT coalesce(sum(amount_atomic::numeric), 0) FROM refunds
    WHERE created_at >= (input->>'from')::bigint AND created_at < (input->>'to')::bigint
  ) > (input->>'per_day')::numeric THEN
    RETURN '{"value": "day-spent"}';
  END IF;
  INSERT INTO refunds SELECT * FROM jsonb_populate_record(NULL::refunds,
    input->'row' || jsonb_build_object('amount_atomic', amount::text));
  RETURN '{"value": "requested"}';
END $$;

-- The next attempt, with its job. rider: {"confirmed": id of the payment, "attempts"}. Call it when the
-- payment is locked.
CREATE FUNCTION ride_refund(rider jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  paid payments;
BEGIN
  SELECT * INTO paid FROM payments WHERE id = rider->>'confirmed' AND state = 'confirmed';
  IF NOT FOUND THEN
    PERFORM refuse('payment-not-confirmed', rider->>'confirmed');
  END IF;
  UPDATE refunds SET attempts = attempts + 1
  WHERE payment_id = paid.id AND attempts = (rider->>'attempts')::bigint AND paid_hash IS NULL
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'broadcast'
      AND id = 'repay:' || refunds.payment_id || ':' || refunds.attempts)
    AND (reason <> 'undelivered' OR paid.delivery <> 'delivered');
  IF NOT FOUND THEN
    PERFORM refuse('refund-changed', paid.id);
  END IF;
END $$;

-- {payment}. `value`: whether another attempt may be sent in place of the newest one.
CREATE FUNCTION retry_refund(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE refunds SET attempts = attempts + 1
  WHERE payment_id = input->>'payment' AND paid_hash IS NULL
    AND EXISTS (SELECT 1 FROM jobs WHERE state IN ('failed', 'replaced')
      AND id = 'repay:' || refunds.payment_id || ':' || refunds.attempts);
  RETURN jsonb_build_object('value', FOUND);
END $$;

-- A transaction has paid the refund of a payment. Returns both, or NULL when another one had paid it. One
-- that is not of its job replaces that of the job, which may only have found the nonce used.
CREATE FUNCTION pay_refund(payment text, hash text, is_elsewhere boolean DEFAULT false)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  refund refunds;
BEGIN
  UPDATE refunds SET paid_hash = hash
  WHERE payment_id = payment AND (paid_hash IS NULL OR is_elsewhere AND paid_hash <> hash)
  RETURNING * INTO refund;
  IF refund.payment_id IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object('refund', to_jsonb(refund) || '{"jobState": null, "jobHash": null}',
    'payment', (SELECT to_jsonb(payments) FROM payments WHERE id = payment));
END $$;

-- {payment, hash}. `value`: of `pay_refund`.
CREATE FUNCTION refund_elsewhere(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_build_object('value', pay_refund(input->>'payment', input->>'hash', true),
    'payments', jsonb_build_array(input->'payment'));
END $$;
