-- Records a receipt, which ends an account nonce. Twin: `record` of db/sqlite/ends.ts.

-- The chain has another transaction at this nonce, so those that are recorded there are displaced:
-- what they paid is open again, and their jobs may still be included. Returns what is changed.
CREATE FUNCTION displace(included jsonb, members text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  displaced text[] := ARRAY(
    SELECT hash FROM transactions
    WHERE network = included->>'network' AND lower(relayer) = lower(included->>'relayer')
      AND nonce = (included->>'nonce')::bigint AND state IN ('mined', 'failed')
      AND hash <> included->>'hash');
  open_payments jsonb;
  job text;
  jobs jsonb := '[]';
  each text;
BEGIN
  IF cardinality(displaced) = 0 THEN
    PERFORM lock_payments(members);
    RETURN NULL;
  END IF;
  PERFORM 1 FROM payments
  WHERE id = ANY(members)
    OR (network = included->>'network' AND transaction_hash = ANY(displaced))
  ORDER BY id FOR NO KEY UPDATE;
  UPDATE payments
  SET state = 'broadcast', log_index = NULL, block_number = NULL, confirmed_at = NULL
  WHERE network = included->>'network' AND transaction_hash = ANY(displaced)
    AND state = 'confirmed';
  SELECT coalesce(jsonb_agg(id ORDER BY id), '[]') INTO open_payments FROM payments
  WHERE network = included->>'network' AND transaction_hash = ANY(displaced)
    AND state = 'broadcast';
  UPDATE transactions SET state = 'replaced', block_number = NULL, cost_wei = NULL
  WHERE hash = ANY(displaced) AND state IN ('mined', 'failed');
  FOREACH each IN ARRAY displaced LOOP
    job := reopen_job(each);
    IF job IS NOT NULL THEN
      -- Its bytes can never be included again, which its relayer finds out and ends it.
      PERFORM resend_transactions(job);
      jobs := jobs || jsonb_build_array(job);
    END IF;
  END LOOP;
  RETURN jsonb_build_object('payments', open_payments, 'jobs', jobs);
END $$;

-- Adds to the sums of a day. Returns them.
CREATE FUNCTION add_gas(network text, product text, day text, wei numeric, wasted numeric)
RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO gas_spent AS sum (network, product, day, wei, wasted_wei)
  VALUES (network, product, day, wei, wasted)
  ON CONFLICT (network, product, day) DO UPDATE
  SET wei = sum.wei + excluded.wei, wasted_wei = sum.wasted_wei + excluded.wasted_wei
  RETURNING jsonb_build_object('wei', sum.wei::text, 'wasted_wei', sum.wasted_wei::text)
$$;

-- Assigns one log to each member, in their order. Returns the rows of those that are confirmed.
CREATE FUNCTION pay(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  included_network text := input->'included'->>'network';
  included_hash text := input->'included'->>'hash';
  taken bigint[] := ARRAY(
    SELECT log_index FROM payments
    WHERE network = included_network AND transaction_hash = included_hash
      AND log_index IS NOT NULL);
  ids text[] := '{}';
  indexes bigint[] := '{}';
  starting boolean[] := '{}';
  confirmed jsonb;
  member record;
  each bigint;
BEGIN
  FOR member IN
    SELECT * FROM jsonb_to_recordset(input->'members') AS m (id text, logs bigint[], starts boolean)
  LOOP
    FOREACH each IN ARRAY member.logs LOOP
      IF each <> ALL (taken) THEN
        -- No log pays twice, even where its payment had ended before.
        taken := taken || each;
        ids := ids || member.id;
        indexes := indexes || each;
        starting := starting || member.starts;
        EXIT;
      END IF;
    END LOOP;
  END LOOP;
  WITH changed AS (
    UPDATE payments
    SET state = 'confirmed', transaction_hash = included_hash, log_index = paid.index,
      block_number = (input->>'block_number')::bigint, confirmed_at = (input->>'at')::bigint,
      delivery = CASE WHEN paid.starts AND delivery = 'none' THEN 'delivering' ELSE delivery END,
      attempts = CASE WHEN paid.starts AND delivery = 'none' THEN attempts + 1 ELSE attempts END,
      delivering_by = CASE WHEN paid.starts AND delivery = 'none' THEN (input->>'by')::uuid
        ELSE delivering_by END
    FROM unnest(ids, indexes, starting) AS paid (id, index, starts)
    -- Written so that the planner takes the key: the index of unfinished payments has the entries of
    -- all that were paid since the last vacuum.
    WHERE payments.id = paid.id AND state NOT IN ('confirmed', 'expired')
    RETURNING payments.*
  )
  SELECT coalesce(jsonb_agg(to_jsonb(changed)), '[]') INTO confirmed FROM changed;
  RETURN confirmed;
END $$;

-- {fence, by, included: {hash, network, relayer, nonce, product}, success, block_number, spent_wei,
-- receipt, hashes, job, at, day, is_costly, members: [{id, logs, starts}]}.
-- `value`: {confirmed: [row], gas: {wei, wasted_wei}}, `ids`: of the confirmed ones. Members that the
-- receipt does not pay are reverted.
CREATE FUNCTION record(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  included jsonb := input->'included';
  included_hash text := included->>'hash';
  is_success boolean := (input->>'success')::boolean;
  block bigint := (input->>'block_number')::bigint;
  ids text[] := ARRAY(SELECT value->>'id' FROM jsonb_array_elements(input->'members'));
  displaced jsonb := displace(included, ids);
  confirmed jsonb := '[]';
  confirmed_ids jsonb := '[]';
  reverted jsonb := '[]';
  ended text;
  -- The holder before this one may have recorded it, and its gas is counted once.
  spent numeric := CASE
    WHEN EXISTS (SELECT 1 FROM transactions
      WHERE hash = included_hash AND state IN ('mined', 'failed')) THEN 0
    ELSE (input->>'spent_wei')::numeric END;
  gas jsonb;
BEGIN
  IF cardinality(ids) > 0 THEN
    IF is_success THEN
      confirmed := pay(input);
      confirmed_ids := jsonb_path_query_array(confirmed, '$[*].id');
    END IF;
    -- Those that are confirmed now are in another state.
    IF jsonb_array_length(confirmed) < cardinality(ids) THEN
      reverted := revert_payments(ids, texts(input->'hashes'));
    END IF;
  END IF;
  UPDATE transactions
  SET state = CASE WHEN hash <> included_hash THEN 'replaced'
      WHEN is_success THEN 'mined' ELSE 'failed' END,
    block_number = CASE WHEN hash = included_hash THEN block END,
    cost_wei = CASE WHEN hash = included_hash THEN input->>'spent_wei' END
  WHERE hash = ANY(texts(input->'hashes') || included_hash) AND state = 'sent';
  IF input->>'job' IS NOT NULL THEN
    UPDATE jobs
    SET state = CASE WHEN is_success THEN 'confirmed' ELSE 'failed' END,
      transaction_hash = included_hash, block_number = block, receipt = input->>'receipt',
      ended_at = (input->>'at')::bigint
    WHERE id = input->>'job' AND state = 'broadcast'
    RETURNING id INTO ended;
  END IF;
  -- Last, because every gateway adds to this row.
  gas := add_gas(included->>'network', included->>'product', input->>'day',
    spent,
    CASE WHEN (input->>'is_costly')::boolean AND NOT coalesce(confirmed_ids ? ids[1], false)
      THEN spent ELSE 0 END);
  RETURN jsonb_build_object(
    'value', jsonb_build_object('confirmed', confirmed, 'gas', gas), 'ids', confirmed_ids,
    'payments', coalesce(displaced->'payments', '[]') || confirmed_ids || reverted,
    'jobs', coalesce(displaced->'jobs', '[]') || list_of(ended));
END $$;
