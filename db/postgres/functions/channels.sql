-- What a request changes of a payment channel. Twin: db/sqlite/channels.ts.

-- Whether a decimal is smaller than another one.
CREATE FUNCTION is_below(one text, other text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(one) < length(other) OR (length(one) = length(other) AND one < other)
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
  WHERE id = input->>'id' AND charged_atomic = input->>'base' AND reserved_id IS NULL
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
  -- What was served is charged, even when another payment has taken the buyer's own key.
  IF entry->'row'->>'idempotency_key' IS NOT NULL AND key_owner(entry->'row') IS NOT NULL THEN
    entry := jsonb_set(entry, '{row,idempotency_key}', 'null');
  END IF;
  PERFORM insert_with_rows(entry);
  RETURN jsonb_build_object('value', entry->'row', 'payments', jsonb_build_array(entry->'row'->'id'));
END $$;

-- Releases the vouchers that requests of gateways which are gone had reserved. A refund stays reserved: its
-- transaction may have been sent.
CREATE FUNCTION release_channels(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE channels
  SET reserved_id = NULL, reserved_atomic = NULL, reserved_signature = NULL,
    reserved_fingerprint = NULL, reserved_at = NULL
  WHERE (balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL)
    AND reserved_id NOT LIKE 'refund:%' AND (reserved_by IS NULL
      OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = channels.reserved_by));
  RETURN '{"value": null}';
END $$;
