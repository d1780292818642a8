-- The books of sales and the values of operators. Twins: db/sqlite/sales.ts and admin.ts.

-- Adds to the counts of a day, to which other gateways add too, and deletes old days.
CREATE FUNCTION add_requests(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO requests (day, merchant, route, client, step, detail, times)
  SELECT (input->>'day')::bigint, c.merchant, c.route, c.client, c.step, c.detail, sum(c.times)
  FROM jsonb_to_recordset(input->'counts')
    AS c(merchant text, route text, client text, step text, detail text, times bigint)
  GROUP BY 2, 3, 4, 5, 6
  -- Gateways that add to the same rows lock them in one order.
  ORDER BY 2, 3, 4, 5, 6
  ON CONFLICT (day, merchant, route, client, step, detail) DO UPDATE
  SET times = requests.times + excluded.times;
  WITH old AS (
    SELECT day, merchant, route, client, step, detail FROM requests
    WHERE day < (input->>'keptFrom')::bigint
    ORDER BY day, merchant, route, client, step, detail FOR UPDATE
  )
  DELETE FROM requests USING old
  WHERE requests.day = old.day AND requests.merchant = old.merchant
    AND requests.route = old.route AND requests.client = old.client
    AND requests.step = old.step AND requests.detail = old.detail;
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

-- {key, pause: {kind, name, at}, is_pause}. `value`: all pauses. The lock of the row orders the changes
-- of several gateways; the empty notification lets the others read it.
CREATE FUNCTION set_pause(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  pause jsonb := input->'pause';
  pauses jsonb;
BEGIN
  INSERT INTO meta (key, value) VALUES (input->>'key', '[]') ON CONFLICT (key) DO NOTHING;
  SELECT value::jsonb INTO pauses FROM meta WHERE key = input->>'key' FOR UPDATE;
  SELECT coalesce(jsonb_agg(each.entry ORDER BY each.place), '[]') INTO pauses
  FROM jsonb_array_elements(pauses) WITH ORDINALITY AS each (entry, place)
  WHERE each.entry->>'kind' <> pause->>'kind' OR each.entry->>'name' <> pause->>'name';
  IF (input->>'is_pause')::boolean THEN
    pauses := pauses || jsonb_build_array(pause);
  END IF;
  UPDATE meta SET value = pauses::text WHERE key = input->>'key';
  PERFORM pg_notify('turnpike', '{}');
  RETURN jsonb_build_object('value', pauses);
END $$;
