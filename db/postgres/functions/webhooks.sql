-- The outbox of webhooks. Twins: db/sqlite/outbox.ts, webhooks.ts and webhook-sweep.ts.

-- Writes messages of events in their order. The same message is written once while it is kept.
CREATE FUNCTION add_messages(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO webhooks (id, endpoint, origin, type, subject, body, state, attempts, created_at,
    due_at, expires_at)
  SELECT m->>'id', m->>'endpoint', m->>'origin', m->>'type', m->>'subject', m->>'body', 'waiting', 0,
    (m->>'at')::bigint, (m->>'at')::bigint, (m->>'expiresAt')::bigint
  FROM jsonb_array_elements(input->'messages') WITH ORDINALITY AS each(m, place)
  ORDER BY place
  ON CONFLICT (id) DO NOTHING;
  RETURN '{"value": null}';
END $$;

-- Also ends a message that was given up during the attempt.
CREATE FUNCTION message_delivered(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE webhooks
  SET attempts = attempts + 1, last_status = (input->>'status')::bigint,
    last_error = input->>'error', state = 'delivered', ended_at = (input->>'at')::bigint
  WHERE seq = (input->>'seq')::bigint;
  RETURN '{"value": null}';
END $$;

CREATE FUNCTION message_failed(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE webhooks
  SET attempts = attempts + 1, last_status = (input->>'status')::bigint,
    last_error = input->>'error', state = 'failed', ended_at = (input->>'at')::bigint
  WHERE seq = (input->>'seq')::bigint AND state = 'waiting';
  RETURN '{"value": null}';
END $$;

CREATE FUNCTION retry_message(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  UPDATE webhooks
  SET attempts = attempts + 1, last_status = (input->>'status')::bigint,
    last_error = input->>'error', due_at = (input->>'dueAt')::bigint
  WHERE seq = (input->>'seq')::bigint AND state = 'waiting';
  RETURN '{"value": null}';
END $$;

-- The row, or null when there is none.
CREATE FUNCTION resend_message(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  message webhooks;
BEGIN
  UPDATE webhooks
  SET state = 'waiting', due_at = (input->>'at')::bigint,
    expires_at = (input->>'expiresAt')::bigint, ended_at = NULL
  WHERE id = input->>'id' RETURNING * INTO message;
  IF NOT FOUND THEN
    RETURN '{"value": null}';
  END IF;
  RETURN jsonb_build_object('value', to_jsonb(message));
END $$;

-- Gives up waiting messages of an endpoint: all of them, those that expire until `expiredAt`, or the
-- oldest `count`. The locks are taken in the order of the rows. The value is their number.
CREATE FUNCTION give_up_messages(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  given_up bigint;
BEGIN
  WITH waiting AS (
    SELECT seq FROM webhooks
    WHERE state = 'waiting' AND endpoint = input->>'endpoint'
      AND (input->>'expiredAt' IS NULL OR expires_at <= (input->>'expiredAt')::bigint)
    ORDER BY seq LIMIT (input->>'count')::bigint FOR UPDATE
  )
  UPDATE webhooks AS w
  SET state = 'failed', last_error = input->>'reason', ended_at = (input->>'at')::bigint
  FROM waiting WHERE w.seq = waiting.seq;
  GET DIAGNOSTICS given_up = ROW_COUNT;
  RETURN jsonb_build_object('value', given_up);
END $$;

CREATE FUNCTION prolong_messages(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  WITH waiting AS (
    SELECT seq FROM webhooks
    WHERE state = 'waiting' AND expires_at < (input->>'until')::bigint
      AND endpoint IN (SELECT jsonb_array_elements_text(input->'endpoints'))
    ORDER BY seq FOR UPDATE
  )
  UPDATE webhooks AS w SET expires_at = (input->>'until')::bigint
  FROM waiting WHERE w.seq = waiting.seq;
  RETURN '{"value": null}';
END $$;

-- Deletes the oldest ended messages of an endpoint, at most `count`, that ended until `from`.
CREATE FUNCTION forget_messages(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  WITH ended AS (
    SELECT seq FROM webhooks
    WHERE ended_at IS NOT NULL AND endpoint = input->>'endpoint'
      AND ended_at <= (input->>'from')::bigint
    ORDER BY ended_at, seq LIMIT (input->>'count')::bigint FOR UPDATE
  )
  DELETE FROM webhooks AS w USING ended WHERE w.seq = ended.seq;
  RETURN '{"value": null}';
END $$;
