-- Changes of payments and jobs between their launch and their end. Twins: db/sqlite/settling.ts, and
-- `giveUp` of db/sqlite/settling.ts. Every change of a state is a compare-and-swap.

-- Locks payments in the order of their ids. A lone payment is locked by its change.
CREATE FUNCTION lock_payments(ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF cardinality(ids) > 1 THEN
    PERFORM 1 FROM payments WHERE id = ANY(ids) ORDER BY id FOR NO KEY UPDATE;
  END IF;
END $$;

-- A list of one id, or of none.
CREATE FUNCTION list_of(id text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE WHEN id IS NULL THEN '[]' ELSE jsonb_build_array(id) END;
END $$;

CREATE FUNCTION texts(list jsonb) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN ARRAY(SELECT jsonb_array_elements_text(list));
END $$;

-- Only payments whose current transaction is one of these: a newer one may contain the payment by
-- now. Returns the ids of those that are changed.
CREATE FUNCTION revert_payments(ids text[], hashes text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  reverted jsonb;
BEGIN
  WITH changed AS (
    UPDATE payments SET state = 'reverted'
    WHERE id = ANY(ids) AND state = 'broadcast' AND transaction_hash = ANY(hashes)
    RETURNING id
  )
  SELECT coalesce(jsonb_agg(id ORDER BY id), '[]') INTO reverted FROM changed;
  RETURN reverted;
END $$;

-- {fence, transaction, hashes, payments, job}. Reports the job, like its twin.
CREATE FUNCTION replace(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  new_hash text := input->'transaction'->>'hash';
  ids text[] := texts(input->'payments');
  job text := input->>'job';
BEGIN
  PERFORM lock_payments(ids);
  UPDATE payments SET transaction_hash = new_hash
  WHERE id = ANY(ids) AND state = 'broadcast'
    AND transaction_hash = ANY(texts(input->'hashes'));
  PERFORM insert_transaction(input->'transaction', ids, lane_epoch);
  IF job IS NOT NULL THEN
    INSERT INTO job_transactions (job_id, transaction_hash) VALUES (job, new_hash);
    UPDATE jobs SET transaction_hash = new_hash WHERE id = job AND state = 'broadcast';
  END IF;
  RETURN jsonb_build_object('value', NULL, 'jobs', list_of(job));
END $$;

-- {fence, hashes, payments, job, at}
CREATE FUNCTION give_up(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  hashes text[] := texts(input->'hashes');
  ids text[] := texts(input->'payments');
  ended text;
  reverted jsonb;
BEGIN
  PERFORM lock_payments(ids);
  reverted := revert_payments(ids, hashes);
  UPDATE transactions SET state = 'replaced', block_number = NULL, cost_wei = NULL
  WHERE hash = ANY(hashes) AND state = 'sent';
  UPDATE jobs
  SET state = 'replaced', transaction_hash = coalesce(hashes[cardinality(hashes)], '0x'),
    block_number = NULL, receipt = NULL, ended_at = (input->>'at')::bigint
  WHERE id = input->>'job' AND state = 'broadcast'
  RETURNING id INTO ended;
  RETURN jsonb_build_object('value', NULL, 'payments', reverted,
    'jobs', list_of(ended));
END $$;

-- {id, transaction, log_index, block_number, at}. `value`: the row. The UNIQUE refuses a log that pays
-- for another payment.
CREATE FUNCTION confirm(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  paid payments;
BEGIN
  UPDATE payments
  SET state = 'confirmed', transaction_hash = input->>'transaction',
    log_index = (input->>'log_index')::bigint, block_number = (input->>'block_number')::bigint,
    confirmed_at = (input->>'at')::bigint, nonce_used = false
  WHERE id = input->>'id' AND state <> 'confirmed'
  RETURNING * INTO paid;
  IF paid.id IS NULL THEN
    RETURN '{"value": null}';
  END IF;
  RETURN jsonb_build_object('value', to_jsonb(paid), 'payments', jsonb_build_array(paid.id));
END $$;

-- {id, used}
CREATE FUNCTION expire(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE payments SET state = 'expired', nonce_used = (input->>'used')::boolean
  WHERE id = input->>'id' AND state IN ('broadcast', 'reverted');
  RETURN jsonb_build_object('value', NULL,
    'payments', CASE WHEN FOUND THEN jsonb_build_array(input->'id') ELSE '[]' END);
END $$;

-- {id, hashes}
CREATE FUNCTION revert(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_build_object('value', NULL,
    'payments', revert_payments(ARRAY[input->>'id'], texts(input->'hashes')));
END $$;

-- {fence, network, hash}. `value`: {payments, job}.
CREATE FUNCTION reopen(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  removed text := input->>'hash';
  paid jsonb;
  opened text;
BEGIN
  SELECT coalesce(jsonb_agg(id ORDER BY id), '[]') INTO paid FROM (
    SELECT id FROM payments
    WHERE network = input->>'network' AND transaction_hash = removed AND log_index IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE
  ) AS locked;
  UPDATE payments
  SET state = 'broadcast', log_index = NULL, block_number = NULL, confirmed_at = NULL
  WHERE id = ANY(texts(paid)) AND state = 'confirmed';
  UPDATE transactions SET state = 'sent', block_number = NULL, cost_wei = NULL
  WHERE hash = removed AND state IN ('mined', 'failed');
  opened := reopen_job(removed);
  RETURN jsonb_build_object('value', jsonb_build_object('payments', paid, 'job', opened),
    'payments', paid, 'jobs', list_of(opened));
END $$;

-- Reopens the job that this transaction ended, and with it the refund that it paid. Returns its id.
CREATE FUNCTION reopen_job(removed text) RETURNS text LANGUAGE sql AS $$
  WITH opened AS (
    UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL
    WHERE transaction_hash = removed AND state IN ('confirmed', 'failed')
    RETURNING id
  ), unpaid AS (
    UPDATE refunds SET paid_hash = NULL FROM opened
    WHERE starts_with(opened.id, 'repay:') AND payment_id = split_part(opened.id, ':', 2)
      AND paid_hash = removed
  )
  SELECT id FROM opened
$$;

-- Marks replaced transactions of a job as sent, because any may be included.
CREATE FUNCTION resend_transactions(job text) RETURNS void LANGUAGE sql AS $$
  UPDATE transactions SET state = 'sent', block_number = NULL
  WHERE hash IN (SELECT transaction_hash FROM job_transactions WHERE job_id = job)
    AND state = 'replaced'
$$;

-- {fence, id}. `value`: all transactions of the job, the oldest first.
CREATE FUNCTION resend_job(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  lane_epoch bigint := fence(input->'fence');
  rows jsonb;
BEGIN
  PERFORM resend_transactions(input->>'id');
  SELECT coalesce(jsonb_agg(to_jsonb(sent) ORDER BY sent.created_at, sent.seq), '[]') INTO rows
  FROM transactions AS sent
  JOIN job_transactions AS link ON link.transaction_hash = sent.hash
  WHERE link.job_id = input->>'id';
  RETURN jsonb_build_object('value', rows);
END $$;
