-- What a request changes of a payment channel. Twin: db/sqlite/channels.ts.

-- Whether a decimal is smaller than another one.
CREATE FUNCTION is_below(one text, other text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(one) < length(other) OR (length(one) = length(other) AND one < other)
$$;

-- {id, base, reserved: {id, atomic, signature, fingerprint, at}, by}. `value`: true, or the row as it is, or
-- null. What a request of a gateway that is gone had reserved is free. A refund, without `by`, is reserved
-- again for each attempt.
CREATE FUNCTION reserve_channel(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  reserved jsonb := input->'reserved';
  most text := reserved->>'atomic';
BEGIN
  UPDATE channels
  SET reserved_id = reserved->>'id', reserved_atomic = most,
    reserved_signature = reserved->>'signature', reserved_fingerprint = reserved->>'fingerprint',
    reserved_at = (reserved->>'at')::bigint, used_at = (reserved->>'at')::bigint,
    reserved_by = (input->>'by')::uuid
  WHERE id = input->>'id' AND charged_atomic = input->>'base'
    AND (reserved_id IS NULL OR reserved_id = reserved->>'id' OR (reserved_id NOT LIKE 'refund:%'
      AND NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = reserved_by)))
    AND balance_atomic <> claimed_atomic AND NOT is_below(balance_atomic, most)
    AND (most = input->>'base' OR (withdraw_at IS NULL AND is_below(claimed_atomic, most)));
  IF FOUND THEN
    RETURN '{"value": true}';
  END IF;
  RETURN jsonb_build_object('value',
    (SELECT to_jsonb(channels) FROM channels WHERE id = input->>'id'));
END $$;

-- {id, reservation}. `value`: false when another reservation, or none, is there.
CREATE FUNCTION release_channel(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE channels
  SET reserved_id = NULL, reserved_atomic = NULL, reserved_signature = NULL,
    reserved_fingerprint = NULL, reserved_at = NULL
  WHERE id = input->>'id' AND reserved_id = input->>'reservation';
  RETURN jsonb_build_object('value', FOUND);
END $$;

-- {base, charged, payment: a `new_payment`, by, entitlement: row | null}. `value`: null when nothing was written,
-- else what is written of nonce and key. What was served is charged, even
-- when another payment has taken that key, or the nonce: a payer may use it for other money, so as to get a
-- stream that cannot be charged.
CREATE FUNCTION charge_channel(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  paid new_payment := (input->>'payment')::new_payment;
  deliverer uuid := input->>'by';
BEGIN
  UPDATE channels
  SET charged_atomic = input->>'charged',
    signed_atomic = CASE WHEN NOT is_below(signed_atomic, input->>'charged')
      THEN signed_atomic ELSE reserved_atomic END,
    signature = CASE WHEN NOT is_below(signed_atomic, input->>'charged')
      THEN signature ELSE reserved_signature END,
    reserved_id = NULL, reserved_atomic = NULL, reserved_signature = NULL,
    reserved_fingerprint = NULL, reserved_at = NULL
  WHERE id = paid.transaction_hash AND reserved_id = paid.id
    AND charged_atomic = input->>'base' AND NOT is_below(reserved_atomic, input->>'charged');
  IF NOT FOUND THEN
    RETURN '{"value": null}';
  END IF;
  -- The lock of the money that both triggers take, so that no authorization of it comes in between.
  PERFORM pg_advisory_xact_lock(
    hashtextextended(paid.network || lower(paid.asset) || lower(paid.payer) || paid.nonce, 1));
  IF EXISTS (
    SELECT 1 FROM authorizations AS a
    WHERE a.network = paid.network AND lower(a.asset) = lower(paid.asset)
      AND lower(a.payer) = lower(paid.payer) AND a.nonce = paid.nonce
  ) THEN
    paid.nonce := other_nonce(paid.id);
  END IF;
  -- Not with an exception, because each of a large commit would be a subtransaction.
  INSERT INTO payments SELECT paid.*, deliverer ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    paid.idempotency_key := NULL;
    INSERT INTO payments SELECT paid.*, deliverer ON CONFLICT DO NOTHING;
  END IF;
  IF NOT FOUND THEN
    paid.nonce := other_nonce(paid.id);
    INSERT INTO payments SELECT paid.*, deliverer;
  END IF;
  IF input->'entitlement' <> 'null' THEN
    INSERT INTO entitlements
    SELECT * FROM jsonb_populate_record(NULL::entitlements, input->'entitlement');
  END IF;
  RETURN jsonb_build_object('payments', jsonb_build_array(paid.id), 'value',
    jsonb_build_object('nonce', paid.nonce, 'idempotencyKey', paid.idempotency_key));
END $$;

CREATE FUNCTION other_nonce(payment text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT '0x' || encode(sha256(convert_to(payment, 'UTF8')), 'hex')
$$;
