-- Native coin that is given to addresses. Twin: db/sqlite/grants.ts.

-- The sums of the UTC day that begins at a time, locked. Its first use in a day reads the rows, which
-- are there when a database was moved. All changes of a day's rows hold this lock.
CREATE FUNCTION lock_grant_day(of_network text, start bigint) RETURNS grant_days
LANGUAGE plpgsql AS $$
DECLARE
  day grant_days;
BEGIN
  SELECT * INTO day FROM grant_days
  WHERE network = of_network AND day_from = start FOR NO KEY UPDATE;
  IF FOUND THEN
    RETURN day;
  END IF;
  INSERT INTO grant_days (network, day_from, grants, wei)
  SELECT of_network, start, count(*), coalesce(sum(spent.wei), 0) FROM (
    SELECT amount_wei::numeric + fee_wei::numeric AS wei FROM grants
    WHERE network = of_network AND created_at >= start AND created_at < start + 86400000
    UNION ALL
    SELECT amount_wei::numeric + fee_wei::numeric FROM grant_top_ups
    WHERE network = of_network AND created_at >= start AND created_at < start + 86400000
  ) AS spent
  ON CONFLICT DO NOTHING;
  SELECT * INTO day FROM grant_days
  WHERE network = of_network AND day_from = start FOR NO KEY UPDATE;
  RETURN day;
END $$;

-- The grant of a job. rider: {"isTopUp", "isSigned", "row", "from", "grants", "wei"}, where the last
-- two are the limits of the day that begins at `from`. Value: the sums of that day afterwards.
-- The conditions are those of db/GrantBudget.ts.
CREATE FUNCTION ride_grant(rider jsonb, hash text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  given jsonb := rider->'row' || jsonb_build_object('transaction_hash', hash);
  cost numeric := (given->>'amount_wei')::numeric + (given->>'fee_wei')::numeric;
  most bigint := (rider->>'grants')::bigint;
  most_wei numeric := (rider->>'wei')::numeric;
  day grant_days;
BEGIN
  day := lock_grant_day(given->>'network', (rider->>'from')::bigint);
  IF day.grants >= most OR day.wei + cost > most_wei THEN
    PERFORM refuse('grants-spent', given->>'address');
  END IF;
  IF (2 * day.grants >= most OR 2 * day.wei >= most_wei) AND NOT (rider->>'isSigned')::boolean THEN
    PERFORM refuse('grants-signed-only', given->>'address');
  END IF;
  IF (rider->>'isTopUp')::boolean THEN
    INSERT INTO grant_top_ups SELECT * FROM jsonb_populate_record(NULL::grant_top_ups, given)
    ON CONFLICT DO NOTHING;
  ELSE
    INSERT INTO grants SELECT * FROM jsonb_populate_record(NULL::grants, given)
    ON CONFLICT DO NOTHING;
  END IF;
  IF NOT FOUND THEN
    PERFORM refuse('grant-exists', given->>'address');
  END IF;
  -- A grant that was requested on the day before does not count for this one.
  IF (given->>'created_at')::bigint >= day.day_from THEN
    UPDATE grant_days SET grants = grants + 1, wei = wei + cost
    WHERE network = day.network AND day_from = day.day_from RETURNING * INTO day;
  END IF;
  RETURN jsonb_build_object('grants', day.grants, 'wei', day.wei::text);
END $$;

-- Sets the gas cost of a transfer, and the sums of its day.
-- input: {"network", "address", "isTopUp", "feeWei"}.
CREATE FUNCTION set_grant_fee(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  created bigint;
  fee text;
  day grant_days;
BEGIN
  IF (input->>'isTopUp')::boolean THEN
    SELECT created_at INTO created FROM grant_top_ups
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
  ELSE
    SELECT created_at INTO created FROM grants
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
  END IF;
  IF NOT FOUND THEN
    RETURN '{"value": null}';
  END IF;
  day := lock_grant_day(input->>'network', created - created % 86400000);
  -- Read under the lock, so that each change is counted once.
  IF (input->>'isTopUp')::boolean THEN
    SELECT fee_wei INTO fee FROM grant_top_ups
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
    UPDATE grant_top_ups SET fee_wei = input->>'feeWei'
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
  ELSE
    SELECT fee_wei INTO fee FROM grants
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
    UPDATE grants SET fee_wei = input->>'feeWei'
    WHERE network = input->>'network' AND lower(address) = lower(input->>'address');
  END IF;
  UPDATE grant_days SET wei = wei + (input->>'feeWei')::numeric - fee::numeric
  WHERE network = day.network AND day_from = day.day_from;
  RETURN '{"value": null}';
END $$;
