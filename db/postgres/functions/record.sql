-- Records a receipt, which ends an account nonce. Twin: `record` of db/sqlite/settling.ts.

-- The chain has another transaction at this nonce, so those that are recorded there are displaced:
-- what they paid is open again, and their jobs may still be included. Returns what is changed.
CREATE FUNCTION displace(included jsonb, displaced text[], members text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  -- Those that these transactions paid, and all that they contain.
  touched text[] := ARRAY(
    SELECT id FROM payments
    WHERE network = included->>'network' AND transaction_hash = ANY(displaced)
      AND log_index IS NOT NULL
    UNION SELECT payment_id FROM transaction_members WHERE transaction_hash = ANY(displaced));
  open_payments jsonb;
  job text;
  jobs jsonb := '[]';
  each text;
BEGIN
  PERFORM 1 FROM payments WHERE id = ANY(members || touched) ORDER BY id FOR NO KEY UPDATE;
  UPDATE payments
  SET state = 'broadcast', log_index = NULL, block_number = NULL, confirmed_at = NULL
  WHERE id = ANY(touched) AND transaction_hash = ANY(displaced) AND state = 'confirmed';
  SELECT coalesce(jsonb_agg(id ORDER BY id), '[]') INTO open_payments FROM payments
  WHERE id = ANY(touched) AND transaction_hash = ANY(displaced) AND state = 'broadcast';
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

-- Assigns one log to each member, in their order, and no log that is taken: no log pays twice, even where
-- its payment had ended before. `value`: {ids, indexes, starts}, as `record` takes them.
CREATE FUNCTION assign_logs(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  included_network text := input->'included'->>'network';
  included_hash text := input->'included'->>'hash';
  taken bigint[] := ARRAY(
    SELECT log_index FROM payments
    WHERE network = included_network AND transaction_hash = included_hash
      AND log_index IS NOT NULL);
  ids text[] := '{}';
  indexes bigint[] := '{}';
  starts boolean[] := '{}';
  member record;
  each bigint;
BEGIN
  FOR member IN
    SELECT * FROM jsonb_to_recordset(input->'members') AS m (id text, logs bigint[], starts boolean)
  LOOP
    FOREACH each IN ARRAY member.logs LOOP
      IF each <> ALL (taken) THEN
        taken := taken || each;
        ids := ids || member.id;
        indexes := indexes || each;
        starts := starts || member.starts;
        EXIT;
      END IF;
    END LOOP;
  END LOOP;
  RETURN jsonb_build_object('ids', ids::text, 'indexes', indexes::text, 'starts', starts::text);
END $$;

-- {fence, by, included: {hash, network, relayer, nonce, product}, success, block_number, spent_wei,
-- receipt, hashes: {hash}, job, at, day, is_costly, first: id of the first member, all: {id}, sorted;
-- the members that a log pays: ids, indexes, starts, in braces, as if no log was taken, where the UNIQUE
-- of payments refuses one that is; or else members: [{id, logs, starts}]; is_known}.
-- `value`: {paid: [id], wei, wasted, refunded: of pay_refund when the job has paid one}. `ids`: of those
-- whose rows the caller needs, which are all of them, or with `is_known`, when the caller has the payments,
-- those that have other values than a payment that is confirmed for the first time. Members that the receipt does not pay are reverted.
CREATE FUNCTION record(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence_stored(input->'fence');
  included jsonb := input->'included';
  included_hash text := included->>'hash';
  is_success boolean := input->>'success';
  block bigint := input->>'block_number';
  sent_hashes text[] := input->>'hashes';
  all_ids text[] := input->>'all';
  assigned jsonb := input;
  recorded text[];
  displaced jsonb;
  paid_ids text[] := '{}';
  row_ids text[];
  reverted jsonb;
  ended text;
  refunded jsonb;
  spent numeric := input->>'spent_wei';
  wasted numeric;
  total_wei numeric;
  total_wasted numeric;
BEGIN
  IF EXISTS (
    SELECT 1 FROM transactions AS t
    WHERE t.network = included->>'network' AND lower(t.relayer) = lower(included->>'relayer')
      AND t.nonce = (included->>'nonce')::bigint AND t.state IN ('mined', 'failed')
  ) THEN
    recorded := ARRAY(
      SELECT t.hash FROM transactions AS t
      WHERE t.network = included->>'network' AND lower(t.relayer) = lower(included->>'relayer')
        AND t.nonce = (included->>'nonce')::bigint AND t.state IN ('mined', 'failed'));
    -- The holder before this one may have recorded it, and its gas is counted once.
    IF included_hash = ANY(recorded) THEN
      spent := 0;
      recorded := array_remove(recorded, included_hash);
    END IF;
    IF cardinality(recorded) > 0 THEN
      displaced := displace(included, recorded, all_ids);
    END IF;
  END IF;
  IF displaced IS NULL AND cardinality(all_ids) > 1 THEN
    PERFORM 1 FROM payments WHERE id = ANY(all_ids) ORDER BY id FOR NO KEY UPDATE;
  END IF;
  IF is_success AND cardinality(all_ids) > 0 THEN
    IF assigned ? 'members' THEN
      assigned := assign_logs(input);
    END IF;
    WITH changed AS (
      UPDATE payments
      SET state = 'confirmed', transaction_hash = included_hash, log_index = paid.index,
        block_number = block, confirmed_at = (input->>'at')::bigint, nonce_used = false,
        delivery = CASE WHEN paid.starts AND delivery = 'none' THEN 'delivering' ELSE delivery END,
        attempts = CASE WHEN paid.starts AND delivery = 'none' THEN attempts + 1 ELSE attempts END,
        delivering_by = CASE WHEN paid.starts AND delivery = 'none' THEN (input->>'by')::uuid
          ELSE delivering_by END
      FROM unnest((assigned->>'ids')::text[], (assigned->>'indexes')::bigint[],
        (assigned->>'starts')::boolean[]) AS paid (id, index, starts)
      WHERE payments.id = paid.id AND state <> 'confirmed'
      RETURNING payments.id, attempts = paid.starts::int
        AND delivery = CASE WHEN paid.starts THEN 'delivering' ELSE 'none' END
        AND num_nonnulls(upstream_status, redeem_token_hash, delivered_at) = 0
        AND NOT (truncated OR answered) AS is_first
    )
    SELECT coalesce(array_agg(id), '{}'),
      array_agg(id) FILTER (WHERE (is_first AND (input->>'is_known')::boolean) IS NOT TRUE)
    INTO paid_ids, row_ids FROM changed;
  END IF;
  -- Those that are confirmed now are in another state.
  IF cardinality(paid_ids) < cardinality(all_ids) THEN
    reverted := revert_payments(all_ids, sent_hashes);
  END IF;
  UPDATE transactions
  SET state = CASE WHEN hash <> included_hash THEN 'replaced'
      WHEN is_success THEN 'mined' ELSE 'failed' END,
    block_number = CASE WHEN hash = included_hash THEN block END,
    cost_wei = CASE WHEN hash = included_hash THEN input->>'spent_wei' END
  -- The state is `sent`, written like that for the planner, too.
  WHERE hash = ANY(sent_hashes || included_hash)
    AND state NOT IN ('signed', 'mined', 'failed', 'replaced');
  IF input->>'job' IS NOT NULL THEN
    UPDATE jobs
    SET state = CASE WHEN is_success THEN 'confirmed' ELSE 'failed' END,
      transaction_hash = included_hash, block_number = block, receipt = input->>'receipt',
      ended_at = (input->>'at')::bigint
    WHERE id = input->>'job' AND state = 'broadcast'
    RETURNING id INTO ended;
    IF is_success AND starts_with(ended, 'repay:') THEN
      refunded := pay_refund(split_part(ended, ':', 2), included_hash);
    END IF;
  END IF;
  wasted := CASE WHEN (input->>'is_costly')::boolean
    AND NOT coalesce(input->>'first' = ANY(paid_ids), false) THEN spent ELSE 0 END;
  -- Last, because every gateway adds to this row. It is there but for the first one of a day.
  UPDATE gas_spent SET wei = wei + spent, wasted_wei = wasted_wei + wasted
  WHERE network = included->>'network' AND product = included->>'product' AND day = input->>'day'
  RETURNING wei, wasted_wei INTO total_wei, total_wasted;
  IF NOT FOUND THEN
    INSERT INTO gas_spent AS sum (network, product, day, wei, wasted_wei)
    VALUES (included->>'network', included->>'product', input->>'day', spent, wasted)
    ON CONFLICT (network, product, day) DO UPDATE
    SET wei = sum.wei + excluded.wei, wasted_wei = sum.wasted_wei + excluded.wasted_wei
    RETURNING sum.wei, sum.wasted_wei INTO total_wei, total_wasted;
  END IF;
  assigned := jsonb_build_object(
    'value', jsonb_build_object('paid', paid_ids, 'wei', total_wei::text, 'wasted', total_wasted::text),
    'payments', paid_ids);
  IF num_nonnulls(displaced, row_ids, reverted, ended) > 0 THEN
    IF refunded IS NOT NULL THEN
      assigned := jsonb_set(assigned, '{value,refunded}', refunded);
    END IF;
    RETURN assigned || jsonb_build_object(
      'payments',
      coalesce(displaced->'payments', '[]') || to_jsonb(paid_ids) || coalesce(reverted, '[]')
        || list_of(refunded->'payment'->>'id'),
      'jobs', coalesce(displaced->'jobs', '[]') || list_of(ended))
      || CASE WHEN row_ids IS NULL THEN '{}' ELSE jsonb_build_object('ids', row_ids) END;
  END IF;
  RETURN assigned;
END $$;
