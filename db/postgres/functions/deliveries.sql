-- The delivery of payments. Twin: `changeDelivery` of db/sqlite/payments.ts. `by` is the gateway that
-- delivers, or null: then no other gateway's delivery is taken or ended.

-- {id, by}. Begins a delivery that no live gateway has. `value`: the row, or null.
CREATE FUNCTION begin_delivery(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deliverer uuid := (input->>'by')::uuid;
  begun payments;
BEGIN
  UPDATE payments
  SET delivery = 'delivering', attempts = attempts + 1, delivering_by = deliverer
  WHERE id = input->>'id' AND state = 'confirmed'
    AND (delivery = 'none' OR (delivery = 'delivering' AND (
      delivering_by IS NULL OR delivering_by = deliverer
      OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = delivering_by))))
  RETURNING * INTO begun;
  RETURN jsonb_build_object('value', CASE WHEN begun.id IS NOT NULL THEN to_jsonb(begun) END);
END $$;

-- {id, status, truncated, at, by}. A stream is recorded at its first byte and corrected when it is
-- cut.
CREATE FUNCTION deliver(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deliverer uuid := (input->>'by')::uuid;
BEGIN
  UPDATE payments
  SET delivery = 'delivered', upstream_status = (input->>'status')::bigint,
    truncated = (input->>'truncated')::boolean,
    delivered_at = coalesce(delivered_at, (input->>'at')::bigint), delivering_by = NULL
  WHERE id = input->>'id' AND delivery IN ('delivering', 'delivered')
    AND (deliverer IS NULL OR delivering_by IS NULL OR delivering_by = deliverer);
  RETURN jsonb_build_object('value', FOUND);
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

-- {id, at}
CREATE FUNCTION hand_over(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE payments
  SET delivery = 'delivered', attempts = attempts + 1, delivered_at = (input->>'at')::bigint
  WHERE id = input->>'id' AND state = 'confirmed' AND delivery = 'none';
  RETURN jsonb_build_object('value', FOUND);
END $$;

-- {id}
CREATE FUNCTION mark_answered(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE payments SET answered = true WHERE id = input->>'id';
  RETURN '{"value": null}';
END $$;
