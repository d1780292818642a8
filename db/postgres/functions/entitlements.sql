-- What wallets may have without a further payment. Twin: db/sqlite/entitlements.ts.

-- {id, entitlement, trial: row | null, day: row | null, attempts: most for each use, at, by}. The commit has
-- the locks of the ids of the use, of the entitlement and of the day, so that what is read here stays until
-- it is written. `value`: how it ended.
CREATE FUNCTION use_entitlement(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  known entitlements;
  pool entitlements;
  most bigint;
  times bigint := input->>'attempts';
  day_max bigint := input->'day'->>'uses_max';
BEGIN
  IF EXISTS (SELECT 1 FROM entitlement_uses WHERE id = input->>'id') THEN
    RETURN '{"value": "id-used"}';
  END IF;
  SELECT * INTO known FROM entitlements WHERE id = input->>'entitlement';
  IF input->'trial' = 'null' THEN
    -- Its state decides, so a reorganisation and a refund wait.
    PERFORM 1 FROM payments WHERE id = known.payment_id FOR SHARE;
    IF (known.kind = 'trial') IS NOT TRUE AND NOT EXISTS (
      SELECT 1 FROM payments AS p
      WHERE p.id = known.payment_id AND p.state = 'confirmed'
        AND p.confirmed_at + known.period_ms > (input->>'at')::bigint
        AND NOT EXISTS (SELECT 1 FROM refunds AS r WHERE r.payment_id = p.id)) THEN
      RETURN '{"value": "over"}';
    END IF;
  END IF;
  most := coalesce((input->'trial'->>'uses_max')::bigint, known.uses_max);
  IF known.uses >= most OR known.attempts >= times * most THEN
    RETURN '{"value": "spent"}';
  END IF;
  SELECT * INTO pool FROM entitlements WHERE id = input->'day'->>'id';
  IF pool.uses >= day_max OR pool.attempts >= times * day_max THEN
    RETURN '{"value": "day-spent"}';
  END IF;
  INSERT INTO entitlements
  SELECT * FROM jsonb_populate_recordset(NULL::entitlements,
    jsonb_path_query_array(jsonb_build_array(input->'trial', input->'day'), '$[*] ? (@ != null)'))
  ON CONFLICT DO NOTHING;
  UPDATE entitlements
  SET uses = uses + 1, attempts = attempts + 1,
    uses_max = CASE WHEN id = input->>'entitlement' THEN most ELSE day_max END
  WHERE id IN (input->>'entitlement', input->'day'->>'id');
  INSERT INTO entitlement_uses (id, entitlement_id, day_id, wallet, state, created_at, gateway)
  VALUES (input->>'id', input->>'entitlement', input->'day'->>'id',
    coalesce(known.wallet, input->'trial'->>'wallet'), 'running', (input->>'at')::bigint,
    (input->>'by')::uuid);
  RETURN '{"value": "used"}';
END $$;

-- {id, is_delivered}. A failed use is given back. `value`: whether it was running.
CREATE FUNCTION end_use(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  ended entitlement_uses;
BEGIN
  UPDATE entitlement_uses
  SET state = CASE WHEN (input->>'is_delivered')::boolean THEN 'delivered' ELSE 'failed' END
  WHERE id = input->>'id' AND state = 'running'
  RETURNING * INTO ended;
  IF ended.state = 'failed' THEN
    UPDATE entitlements SET uses = uses - 1 WHERE id IN (ended.entitlement_id, ended.day_id);
  END IF;
  RETURN jsonb_build_object('value', ended.id IS NOT NULL);
END $$;

-- Gives back the uses that no living gateway has running.
CREATE FUNCTION recover_uses(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM end_use(jsonb_build_object('id', id, 'is_delivered', false)) FROM entitlement_uses
  WHERE state = 'running' AND (gateway IS NULL
    OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = entitlement_uses.gateway));
  RETURN '{"value": null}';
END $$;
