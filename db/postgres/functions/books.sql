-- The books of sales and the values of operators. Twins: db/sqlite/sales-writes.ts and admin.ts.

-- Adds to the counts of an hour, to which other gateways add too, and deletes old hours.
CREATE FUNCTION add_requests(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO hours (hour, merchant, route, asked, paid, failed)
  SELECT (input->>'hour')::bigint, c->>'merchant', c->>'route', sum((c->>'asked')::bigint),
    sum((c->>'paid')::bigint), sum((c->>'failed')::bigint)
  FROM jsonb_array_elements(input->'counts') AS each(c)
  GROUP BY c->>'merchant', c->>'route'
  -- Gateways that add to the same rows lock them in one order.
  ORDER BY c->>'merchant', c->>'route'
  ON CONFLICT (hour, merchant, route) DO UPDATE
  SET asked = hours.asked + excluded.asked, paid = hours.paid + excluded.paid,
    failed = hours.failed + excluded.failed;
  WITH old AS (
    SELECT hour, merchant, route FROM hours WHERE hour < (input->>'keptFrom')::bigint
    ORDER BY hour, merchant, route FOR UPDATE
  )
  DELETE FROM hours USING old
  WHERE hours.hour = old.hour AND hours.merchant = old.merchant AND hours.route = old.route;
  RETURN '{"value": null}';
END $$;

-- Keeps the accounts and the assets of a configuration beside those of earlier ones. Of two
-- descriptions of one asset the last one counts.
CREATE FUNCTION describe_books(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO own_accounts (address, added_at)
  SELECT account, (input->>'now')::bigint
  FROM jsonb_array_elements_text(input->'accounts') AS each(account)
  ORDER BY lower(account)
  ON CONFLICT DO NOTHING;
  INSERT INTO assets (network, address, network_name, symbol, decimals, coin_usd, updated_at)
  SELECT DISTINCT ON (a->>'network', lower(a->>'address')) a->>'network', a->>'address',
    a->>'networkName', a->>'symbol', (a->>'decimals')::bigint, a->>'coinUsd',
    (input->>'now')::bigint
  FROM jsonb_array_elements(input->'assets') WITH ORDINALITY AS each(a, place)
  ORDER BY a->>'network', lower(a->>'address'), place DESC
  ON CONFLICT (network, lower(address)) DO UPDATE
  SET network_name = excluded.network_name, symbol = excluded.symbol, decimals = excluded.decimals,
    coin_usd = excluded.coin_usd, updated_at = excluded.updated_at;
  RETURN '{"value": null}';
END $$;

CREATE FUNCTION set_meta(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO meta (key, value) VALUES (input->>'key', input->>'value')
  ON CONFLICT (key) DO UPDATE SET value = excluded.value;
  RETURN '{"value": null}';
END $$;
