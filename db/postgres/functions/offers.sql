-- Retired offers and the mirror of the configuration. Twin: db/sqlite/offers.ts.

-- input: {"merchants": [rows], "ended": [rows], "keptFrom": ..., "by": gateway}. Of two gateways that
-- apply a configuration, one waits for the other, so the tables have one of the two. The others are
-- notified, because they accept its offers.
CREATE FUNCTION replace_offers(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  ended offers;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('offers', 0));
  DELETE FROM offers WHERE retired_at < (input->>'keptFrom')::bigint;
  FOR ended IN SELECT * FROM jsonb_populate_recordset(NULL::offers, input->'ended') LOOP
    -- An existing offer gets the new time.
    UPDATE offers SET retired_at = ended.retired_at
    WHERE merchant = ended.merchant AND route = ended.route AND network = ended.network
      AND lower(asset) = lower(ended.asset) AND lower(pay_to) = lower(ended.pay_to)
      AND amount_atomic = ended.amount_atomic;
    IF NOT FOUND THEN
      INSERT INTO offers SELECT ended.*;
    END IF;
  END LOOP;
  DELETE FROM merchants
  WHERE slug NOT IN (
    SELECT slug FROM jsonb_populate_recordset(NULL::merchants, input->'merchants'));
  INSERT INTO merchants SELECT * FROM jsonb_populate_recordset(NULL::merchants, input->'merchants')
  ON CONFLICT (slug) DO UPDATE
  SET title = excluded.title, hash = excluded.hash, json = excluded.json,
    updated_at = excluded.updated_at
  -- The hash does not cover values from other tables, such as the payout.
  WHERE merchants.hash <> excluded.hash OR merchants.json <> excluded.json;
  PERFORM pg_notify('turnpike', jsonb_build_object('by', input->'by', 'offers', true)::text);
  RETURN '{"value": null}';
END $$;
