-- Authorizations of the scheme upto. Twins: db/sqlite/authorizations.ts, and `settle` of
-- db/sqlite/launches.ts.

-- Refused by UNIQUE and by a trigger when the money was authorized or paid before.
CREATE FUNCTION insert_authorization(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO authorizations SELECT * FROM jsonb_populate_record(NULL::authorizations, input);
  RETURN '{"value": null}';
END $$;

-- input: {"id", "from": [states] or null for all, "set": {column: value}}. value: whether it was in
-- one of these states. A charge is notified like a payment: the gateway of its relayer settles it.
CREATE FUNCTION change_authorization(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  before authorizations;
  after authorizations;
BEGIN
  SELECT * INTO before FROM authorizations WHERE id = input->>'id' FOR NO KEY UPDATE;
  IF NOT FOUND OR (input->'from' <> 'null' AND NOT input->'from' ? before.state) THEN
    RETURN '{"value": false}';
  END IF;
  after := jsonb_populate_record(before, input->'set');
  UPDATE authorizations
  SET state = after.state,
    charge_atomic = after.charge_atomic,
    units = after.units,
    is_delivered = after.is_delivered,
    upstream_status = after.upstream_status,
    truncated = after.truncated,
    failed_at = after.failed_at
  WHERE id = before.id;
  RETURN jsonb_build_object('value', true, 'payments',
    CASE WHEN after.state = 'metered' THEN jsonb_build_array(after.id) ELSE '[]' END);
END $$;

-- The row of the payment that settles the authorization of its id. The buyer may have the answer
-- already.
CREATE FUNCTION settle_authorization(payment jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  settled authorizations;
BEGIN
  UPDATE authorizations SET state = 'sent'
  WHERE id = payment->>'id' AND state = 'metered'
  RETURNING * INTO settled;
  IF NOT FOUND THEN
    PERFORM refuse('money-authorized', payment->>'id');
  END IF;
  IF NOT settled.is_delivered OR settled.upstream_status IS NULL THEN
    RETURN payment;
  END IF;
  RETURN payment || jsonb_build_object(
    'upstream_status', settled.upstream_status,
    'truncated', settled.truncated,
    'delivery', 'delivered',
    'attempts', 1,
    'answered', true,
    'delivered_at', payment->'created_at');
END $$;
