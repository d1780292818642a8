-- Failures of payers that all gateways count. Twin: the buckets of src/settlement/state/payers.ts.

-- {failures: [{key, ms}], window, apart, at}. `value`: when each bucket is full again, by key. A stored
-- time that is later than a whole window by more than `apart`, in which the clocks of gateways may differ,
-- comes from a clock that was set back, so it counts as empty. Deletes expired rows that no other commit
-- has locked.
CREATE FUNCTION add_failures(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint := (input->>'at')::bigint;
  most bigint := now_at + (input->>'window')::bigint;
  believed bigint := most + (input->>'apart')::bigint;
  full_ats jsonb;
BEGIN
  WITH added AS (
    INSERT INTO payer_failures (key, full_at)
    SELECT key, LEAST(now_at + ms, most)
    FROM jsonb_to_recordset(input->'failures') AS failure (key text, ms bigint)
    ORDER BY key COLLATE "C"
    ON CONFLICT (key) DO UPDATE
    SET full_at = LEAST(excluded.full_at + CASE
      WHEN payer_failures.full_at BETWEEN now_at AND believed THEN payer_failures.full_at - now_at
      ELSE 0 END, most)
    RETURNING key, full_at
  )
  SELECT jsonb_object_agg(added.key, added.full_at) INTO full_ats FROM added;
  DELETE FROM payer_failures WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM payer_failures WHERE full_at < now_at LIMIT 100 FOR UPDATE SKIP LOCKED));
  RETURN jsonb_build_object('value', full_ats);
END $$;
