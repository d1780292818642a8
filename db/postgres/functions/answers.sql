-- Answers that are kept for the buyer's idempotency key. Twin: db/sqlite/answers.ts.

-- Stores only the first one of a payment.
CREATE FUNCTION store_answer(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO answers SELECT * FROM jsonb_populate_record(NULL::answers, input)
  ON CONFLICT DO NOTHING;
  RETURN '{"value": null}';
END $$;

-- Deletes at most `limit` expired answers, those that no other gateway deletes now. value: how many.
CREATE FUNCTION sweep_answers(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  deleted bigint;
BEGIN
  DELETE FROM answers WHERE payment_id IN (
    SELECT payment_id FROM answers WHERE expires_at <= (input->>'now')::bigint
    ORDER BY expires_at LIMIT (input->>'limit')::bigint FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN jsonb_build_object('value', deleted);
END $$;
