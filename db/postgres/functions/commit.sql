-- The functions that every commit of a gateway goes through. Twin: db/sqlite/group.ts.

-- Rolls back the change that calls it. `about`: the id that the reason concerns.
CREATE FUNCTION refuse(reason text, about text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'TP001', MESSAGE = reason, DETAIL = coalesce(about, '');
END $$;

-- The first step of every write for a lane. The lock of its row orders the write against a takeover:
-- no write of an earlier epoch commits after it. `NULL`: the write is not for a lane. `floor`: the
-- next nonce that was acknowledged; a database with a lower one has lost commits in a failover.
CREATE FUNCTION fence(input jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  current bigint;
BEGIN
  IF input IS NULL OR input = 'null'::jsonb THEN
    RETURN NULL;
  END IF;
  UPDATE lanes
  SET next_nonce = GREATEST(next_nonce, (input->>'nonce')::bigint + 1)
  WHERE network = input->>'network' AND relayer = input->>'relayer'
    AND holder = (input->>'holder')::uuid AND epoch = (input->>'epoch')::bigint
    AND next_nonce >= coalesce((input->>'floor')::bigint, 0)
  RETURNING epoch INTO current;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'TP002', MESSAGE = 'lane-lost',
      DETAIL = (input->>'network') || ' ' || (input->>'relayer');
  END IF;
  RETURN current;
END $$;

-- The same for a write at an account nonce that is stored already. The lock of the row orders it as well,
-- and leaves the row as it is.
CREATE FUNCTION fence_stored(input jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  current lanes;
BEGIN
  IF input IS NULL OR input = 'null'::jsonb THEN
    RETURN NULL;
  END IF;
  SELECT * INTO current FROM lanes
  WHERE network = input->>'network' AND relayer = input->>'relayer'
    AND holder = (input->>'holder')::uuid AND epoch = (input->>'epoch')::bigint
    AND next_nonce >= coalesce((input->>'floor')::bigint, 0)
  FOR NO KEY UPDATE;
  -- After a failover the row may be older than the nonce. Without a row the fence refuses the write.
  IF current.next_nonce IS NULL OR current.next_nonce <= (input->>'nonce')::bigint THEN
    RETURN fence(input);
  END IF;
  RETURN current.epoch;
END $$;

-- Calls a function by its name. Those of every payment are named here, because EXECUTE parses and plans
-- its statement at each call.
CREATE FUNCTION call_change(name text, input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  answer jsonb;
BEGIN
  CASE name
    WHEN 'launch' THEN
      RETURN launch(input);
    WHEN 'record' THEN
      RETURN record(input);
    WHEN 'deliver' THEN
      RETURN deliver(input);
    ELSE
      EXECUTE format('SELECT %I($1)', name) INTO answer USING input;
      RETURN answer;
  END CASE;
END $$;

-- The answer of a commit that was made before. Rows of which it kept the ids are read again.
CREATE FUNCTION recall(answer jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN answer || jsonb_build_object('results', (
    SELECT coalesce(jsonb_agg(CASE
      WHEN each.result ? 'ids' THEN jsonb_build_object('ok', each.result->'ok'
        || jsonb_build_object('confirmed', (
          SELECT coalesce(jsonb_agg(to_jsonb(payments)), '[]') FROM payments
          WHERE id = ANY(texts(each.result->'ids')))))
      ELSE each.result END ORDER BY each.place), '[]')
    FROM jsonb_array_elements(answer->'results') WITH ORDINALITY AS each (result, place)));
END $$;

-- Runs the changes of one commit in their order: [{"call": name, "input": {...}}, ...]. A change that
-- fails is rolled back alone. The result is kept under the id of the commit: the same commit again,
-- which says that it is a repeat, waits for the first one and then has no second effect. A first one that
-- arrives after its repeat fails as a whole, because the id is taken. `others`: other gateways live, whom
-- the caller tells of the payments and jobs. A gateway deletes its own rows of `commits` when it has
-- their answers. `locks` are names that only one commit has at a time. They are locked before any row and
-- in one order. Without `is_kept` nothing is kept, for changes that may run twice and report nothing.
CREATE FUNCTION commit_changes(commit_id uuid, gateway uuid, changes jsonb, locks text[] DEFAULT NULL,
  is_repeat boolean DEFAULT true, is_kept boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  own_lock bigint := hashtextextended(commit_id::text, 0);
  change jsonb;
  answer jsonb;
  results jsonb := '[]';
  kept jsonb := '[]';
  payments jsonb := '[]';
  jobs jsonb := '[]';
  others boolean := false;
  fault_code text;
  fault_message text;
  fault_detail text;
  fault_constraint text;
BEGIN
  -- A condition is evaluated in a tenth of the time of a statement.
  IF NOT pg_try_advisory_xact_lock(own_lock) THEN
    PERFORM pg_advisory_xact_lock(own_lock);
  END IF;
  IF is_repeat THEN
    SELECT result INTO answer FROM commits WHERE id = commit_id;
    IF FOUND THEN
      -- The first one may be on this server only. A transaction that writes nothing waits for no standby.
      UPDATE commits SET at = clock_timestamp() WHERE id = commit_id;
      RETURN recall(answer) || jsonb_build_object('others', EXISTS (
        SELECT 1 FROM gateways WHERE gateways.id <> commit_changes.gateway));
    END IF;
  END IF;
  IF locks IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(lock) FROM (
      SELECT DISTINCT hashtextextended(name, 0) AS lock FROM unnest(locks) AS name
      ORDER BY lock) AS sorted;
  END IF;
  FOR place IN 0 .. jsonb_array_length(changes) - 1 LOOP
    BEGIN
      change := changes->place;
      answer := call_change(change->>'call', change->'input');
      results := results || jsonb_build_array(jsonb_build_object('ok', answer->'value'));
      -- Rows that can be read again are not kept, because a commit that is repeated is rare.
      kept := kept || jsonb_build_array(CASE WHEN answer ? 'ids'
        THEN jsonb_build_object('ok', (answer->'value') - 'confirmed'::text, 'ids', answer->'ids')
        ELSE jsonb_build_object('ok', answer->'value') END);
      payments := payments || coalesce(answer->'payments', '[]');
      jobs := jobs || coalesce(answer->'jobs', '[]');
    EXCEPTION
      -- A server that cannot write, and a deadlock, end the whole commit.
      WHEN insufficient_resources OR system_error OR deadlock_detected OR lock_not_available
        OR query_canceled THEN
        RAISE;
      WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS fault_code = RETURNED_SQLSTATE, fault_message = MESSAGE_TEXT,
          fault_detail = PG_EXCEPTION_DETAIL, fault_constraint = CONSTRAINT_NAME;
        answer := jsonb_build_array(jsonb_build_object('error', jsonb_build_object(
          'code', fault_code, 'message', fault_message, 'detail', fault_detail,
          'constraint', fault_constraint)));
        results := results || answer;
        kept := kept || answer;
    END;
  END LOOP;
  answer := jsonb_build_object('payments', payments, 'jobs', jobs);
  IF is_kept THEN
    INSERT INTO commits (id, gateway, at, result)
    VALUES (commit_id, commit_changes.gateway, clock_timestamp(),
      answer || jsonb_build_object('results', kept))
    RETURNING EXISTS (SELECT 1 FROM gateways WHERE gateways.id <> commit_changes.gateway) INTO others;
  END IF;
  RETURN answer || jsonb_build_object('results', results, 'others', others);
END $$;
