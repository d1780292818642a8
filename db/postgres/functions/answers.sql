-- Answers that are kept for the buyer's idempotency key. Twin: db/sqlite/answers.ts.

-- Stores only the first one of a payment. The body is base64: as hex digits the answers of one commit
-- could be longer than a jsonb may be.
CREATE FUNCTION store_answer(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO answers (payment_id, status, headers, body, created_at, expires_at)
  VALUES (input->>'paymentId', (input->>'status')::bigint, input->>'headers',
    decode(input->>'body', 'base64'), (input->>'createdAt')::bigint,
    (input->>'expiresAt')::bigint)
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
