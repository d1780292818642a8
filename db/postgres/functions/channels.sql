-- What a request changes of a payment channel. Twin: db/sqlite/channels.ts.

-- Whether a decimal is smaller than another one.
CREATE FUNCTION is_below(one text, other text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(one) < length(other) OR (length(one) = length(other) AND one < other)
$$;

-- Whether a gateway that is gone has reserved for a request. A refund stays reserved: its transaction may have
-- been sent.
CREATE FUNCTION is_left(reservation text, gateway uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT reservation NOT LIKE 'refund:%'
    AND NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = gateway)
$$;

-- {id, base, reserved: {id, atomic, signature, fingerprint, at}, by}. `value`: true, or the row as it is, or
-- null.
CREATE FUNCTION reserve_channel(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  reserved jsonb := input->'reserved';
  most text := reserved->>'atomic';
  found_row channels;
BEGIN
  UPDATE channels
  SET reserved_id = reserved->>'id', reserved_atomic = most,
    reserved_signature = reserved->>'signature', reserved_fingerprint = reserved->>'fingerprint',
    reserved_at = (reserved->>'at')::bigint, used_at = (reserved->>'at')::bigint,
    reserved_by = (input->>'by')::uuid
  WHERE id = input->>'id' AND charged_atomic = input->>'base'
    AND (reserved_id IS NULL OR is_left(reserved_id, reserved_by))
    AND balance_atomic <> claimed_atomic AND NOT is_below(balance_atomic, most)
    AND (most = input->>'base' OR (withdraw_at IS NULL AND is_below(claimed_atomic, most)));
  IF FOUND THEN
    RETURN '{"value": true}';
  END IF;
  SELECT * INTO found_row FROM channels WHERE id = input->>'id';
  RETURN jsonb_build_object('value', CASE WHEN found_row.id IS NOT NULL THEN to_jsonb(found_row) END);
END $$;

-- {id, reservation, base, charged, payment: as of `store_external`}. `value`: the row of the payment, or null
-- when nothing was written.
CREATE FUNCTION charge_channel(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  entry jsonb := input->'payment';
BEGIN
  UPDATE channels
  SET charged_atomic = input->>'charged', signed_atomic = reserved_atomic,
    signature = reserved_signature, reserved_id = NULL, reserved_atomic = NULL,
    reserved_signature = NULL, reserved_fingerprint = NULL, reserved_at = NULL
  WHERE id = input->>'id' AND reserved_id = input->>'reservation'
    AND charged_atomic = input->>'base' AND NOT is_below(reserved_atomic, input->>'charged');
  IF NOT FOUND THEN
    RETURN '{"value": null}';
  END IF;
  -- What was served is charged, even when another payment has taken the buyer's own key, or its nonce: a
  -- payer may use that for other money, so as to get a stream that cannot be charged.
  IF entry->'row'->>'idempotency_key' IS NOT NULL AND key_owner(entry->'row') IS NOT NULL THEN
    entry := jsonb_set(entry, '{row,idempotency_key}', 'null');
  END IF;
  BEGIN
    PERFORM insert_with_rows(entry);
  EXCEPTION WHEN unique_violation OR SQLSTATE 'TP003' THEN
    entry := jsonb_set(entry, '{row}', entry->'row' || jsonb_build_object('idempotency_key', NULL,
      'nonce', '0x' || encode(sha256(convert_to(entry->'row'->>'id', 'UTF8')), 'hex')));
    PERFORM insert_with_rows(entry);
  END;
  RETURN jsonb_build_object('value', entry->'row', 'payments', jsonb_build_array(entry->'row'->'id'));
END $$;

-- Releases the vouchers that requests of gateways which are gone had reserved.
CREATE FUNCTION release_channels(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE channels
  SET reserved_id = NULL, reserved_atomic = NULL, reserved_signature = NULL,
    reserved_fingerprint = NULL, reserved_at = NULL
  WHERE (balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL)
    AND reserved_id IS NOT NULL AND is_left(reserved_id, reserved_by);
  RETURN '{"value": null}';
END $$;
