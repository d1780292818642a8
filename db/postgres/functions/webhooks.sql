-- The outbox of webhooks. Twin: db/sqlite/webhooks.ts.

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
