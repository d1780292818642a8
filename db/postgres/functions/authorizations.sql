-- Authorizations of the scheme upto. Twins: db/sqlite/authorizations.ts, and `settledBy` of
-- db/sqlite/settling.ts.

-- What a payer has signed of one asset and not paid: ceilings, and payments under way. A charge that
-- has failed gives its payer no new ceiling, so it is not counted. The charges of a facilitator are not
-- counted here (`entrusted_of`): two of them, each of which counts the other, would wait until they expire.
CREATE FUNCTION reserved_of(of_network text, of_asset text, of_payer text) RETURNS numeric
LANGUAGE sql STABLE AS $$
  SELECT (
    SELECT coalesce(sum(ceiling_atomic::numeric), 0) FROM authorizations
    WHERE lower(payer) = lower(of_payer) AND state IN ('authorized', 'metered')
      AND product <> 'facilitator' AND failed_at IS NULL
      AND network = of_network AND lower(asset) = lower(of_asset)
  ) + (
    SELECT coalesce(sum(amount_atomic::numeric), 0) FROM payments
    WHERE lower(payer) = lower(of_payer) AND state = 'broadcast'
      AND network = of_network AND lower(asset) = lower(of_asset)
  )
$$;

-- The charges of a payer that a facilitator is to settle. Their ceilings do not count: it gives no credit.
CREATE FUNCTION entrusted_of(of_network text, of_asset text, of_payer text) RETURNS numeric
LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(charge_atomic::numeric), 0) FROM authorizations
  WHERE lower(payer) = lower(of_payer) AND state = 'metered' AND product = 'facilitator'
    AND failed_at IS NULL AND network = of_network AND lower(asset) = lower(of_asset)
$$;

-- The ceilings of a payer on all networks that are not settled.
CREATE FUNCTION unsettled_of(of_payer text) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT (
    SELECT coalesce(sum(ceiling_atomic::numeric), 0) FROM authorizations
    WHERE lower(payer) = lower(of_payer) AND state IN ('authorized', 'metered')
      AND product <> 'facilitator' AND failed_at IS NULL
  ) + (
    SELECT coalesce(sum(ceiling_atomic::numeric), 0) FROM payments
    WHERE lower(payer) = lower(of_payer) AND state = 'broadcast' AND product = 'gateway'
      AND ceiling_atomic IS NOT NULL
  )
$$;

-- {row, limits: null | {funds, unsettled, relayer, payer}}. Refused by UNIQUE and by a trigger when the money was
-- authorized or paid before. With limits the commit has the lock of the payer, so the sums include what
-- other gateways have written. The number of ceilings of a relayer is read without a lock, and those of a
-- facilitator have a number of their own. A row that is written as metered is notified like a charge.
CREATE FUNCTION insert_authorization(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  fresh authorizations := jsonb_populate_record(NULL::authorizations, input->'row');
  limits jsonb := input->'limits';
  places record;
BEGIN
  INSERT INTO authorizations SELECT fresh.*;
  IF limits = 'null' THEN
    RETURN '{"value": null}';
  END IF;
  IF fresh.idempotency_key IS NOT NULL AND (key_owner(input->'row') IS NOT NULL OR EXISTS (
    SELECT 1 FROM authorizations
    WHERE merchant = fresh.merchant AND route = fresh.route AND lower(payer) = lower(fresh.payer)
      AND idempotency_key = fresh.idempotency_key AND state IN ('authorized', 'metered')
      AND id <> fresh.id)) THEN
    PERFORM refuse('key-used', fresh.id);
  END IF;
  IF unsettled_of(fresh.payer) > (limits->>'unsettled')::numeric
    OR reserved_of(fresh.network, fresh.asset, fresh.payer)
      + entrusted_of(fresh.network, fresh.asset, fresh.payer) > (limits->>'funds')::numeric THEN
    PERFORM refuse('payer-under-way', fresh.id);
  END IF;
  SELECT count(*) AS taken, count(*) FILTER (WHERE lower(payer) = lower(fresh.payer)) AS own
  INTO places FROM authorizations
  WHERE network = fresh.network AND lower(facilitator) = lower(fresh.facilitator)
    AND state IN ('authorized', 'metered')
    AND (product = 'facilitator') = (fresh.product = 'facilitator');
  IF places.taken > (limits->>'relayer')::bigint THEN
    PERFORM refuse('relayer-busy', fresh.id);
  END IF;
  IF places.own > (limits->>'payer')::bigint THEN
    PERFORM refuse('payer-under-way', fresh.id);
  END IF;
  RETURN jsonb_build_object('value', NULL, 'payments',
    CASE WHEN fresh.state = 'metered' THEN jsonb_build_array(fresh.id) ELSE '[]' END);
END $$;

-- [{id, funds, key?}] of payments of this launch: refuses those whose payer has more under way than it
-- had at the simulation, the newest first, and those whose key has an open ceiling. The commit has the
-- locks of the payers. All are named at once, because a launch is repeated without those that it refuses.
CREATE FUNCTION assert_funded(limits jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  short text[] := '{}';
  twins text[];
  each record;
  payer text;
  reserved numeric;
BEGIN
  IF jsonb_path_exists(limits, '$[*].key') THEN
    SELECT array_agg(payments.id) INTO twins
    FROM jsonb_to_recordset(limits) AS given (id text, key text)
    JOIN payments ON payments.id = given.id
    WHERE EXISTS (
      SELECT 1 FROM authorizations AS a
      WHERE lower(a.payer) = lower(payments.payer) AND a.state IN ('authorized', 'metered')
        AND a.merchant = payments.merchant AND a.route = payments.route
        AND a.idempotency_key = given.key);
    IF twins IS NOT NULL THEN
      PERFORM refuse('key-used', array_to_string(twins, ' '));
    END IF;
  END IF;
  FOR each IN
    SELECT payments.id, payments.network, payments.asset, payments.amount_atomic::numeric AS amount,
      lower(payments.payer) AS payer, given.funds
    FROM jsonb_to_recordset(limits) AS given (id text, funds numeric)
    JOIN payments ON payments.id = given.id
    ORDER BY lower(payments.payer), payments.id DESC
  LOOP
    -- The payments of a launch are of one network and asset.
    IF payer IS DISTINCT FROM each.payer THEN
      payer := each.payer;
      reserved := reserved_of(each.network, each.asset, payer);
    END IF;
    IF reserved > each.funds THEN
      short := short || each.id;
      reserved := reserved - each.amount;
    END IF;
  END LOOP;
  IF cardinality(short) > 0 THEN
    PERFORM refuse('payer-under-way', array_to_string(short, ' '));
  END IF;
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
