-- The functions that every commit of a gateway goes through. Twin: db/sqlite/write.ts.

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
  UPDATE lanes
  SET next_nonce = GREATEST(next_nonce, (input->>'nonce')::bigint + 1)
  WHERE network = input->>'network' AND relayer = input->>'relayer'
    AND holder = (input->>'holder')::uuid AND epoch = (input->>'epoch')::bigint
    AND next_nonce >= coalesce((input->>'floor')::bigint, 0)
  RETURNING epoch INTO current;
  IF current IS NULL AND input <> 'null' THEN
    RAISE EXCEPTION USING ERRCODE = 'TP002', MESSAGE = 'lane-lost',
      DETAIL = (input->>'network') || ' ' || (input->>'relayer');
  END IF;
  RETURN current;
END $$;

-- The same for a write at an account nonce that is stored already. The lock of the row orders it as well,
-- and leaves the row as it is. After a failover the row may be older than the nonce: then it is written.
CREATE FUNCTION fence_stored(input jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  current bigint;
BEGIN
  SELECT epoch INTO current FROM lanes
  WHERE network = input->>'network' AND relayer = input->>'relayer'
    AND holder = (input->>'holder')::uuid AND epoch = (input->>'epoch')::bigint
    AND next_nonce >= coalesce((input->>'floor')::bigint, 0)
    AND next_nonce > (input->>'nonce')::bigint
  FOR NO KEY UPDATE;
  IF current IS NULL THEN
    RETURN fence(input);
  END IF;
  RETURN current;
END $$;

-- Calls a function by its name. Those of every payment are named here, because EXECUTE parses and plans
-- its statement at each call.
CREATE FUNCTION call_change(change jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  name text := change->>'call';
  answer jsonb;
BEGIN
  IF name IN ('launch', 'record', 'deliver', 'reserve_channel', 'charge_channel') THEN
    RETURN CASE name WHEN 'launch' THEN launch(change->'input')
      WHEN 'record' THEN record(change->'input')
      WHEN 'reserve_channel' THEN reserve_channel(change->'input')
      WHEN 'charge_channel' THEN charge_channel(change->'input')
      ELSE deliver(change->'input') END;
  END IF;
  EXECUTE format('SELECT %I($1)', name) INTO answer USING change->'input';
  RETURN answer;
END $$;

-- Answers with the payments that they name in `ids`. These rows are not kept with a commit, because one
-- that is repeated is rare.
CREATE FUNCTION with_rows(answers jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT jsonb_agg(CASE
      WHEN each.answer ? 'ids' THEN jsonb_set(each.answer, '{value,confirmed}', (
        SELECT coalesce(jsonb_agg(to_jsonb(payments)), '[]') FROM payments
        WHERE id = ANY(texts(each.answer->'ids'))))
      ELSE each.answer END ORDER BY each.place)
    FROM jsonb_array_elements(answers) WITH ORDINALITY AS each (answer, place));
END $$;

-- The answers of changes in their order. A change that fails is rolled back alone.
CREATE FUNCTION run_changes(changes jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  answer jsonb;
  answers jsonb := '[]';
  fault_code text;
  fault_message text;
  fault_detail text;
  fault_constraint text;
BEGIN
  FOR place IN 0 .. jsonb_array_length(changes) - 1 LOOP
    BEGIN
      answer := call_change(changes->place);
    EXCEPTION
      -- A server that cannot write, and a deadlock, end the whole commit.
      WHEN insufficient_resources OR system_error OR deadlock_detected OR lock_not_available
        OR query_canceled THEN
        RAISE;
      WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS fault_code = RETURNED_SQLSTATE, fault_message = MESSAGE_TEXT,
          fault_detail = PG_EXCEPTION_DETAIL, fault_constraint = CONSTRAINT_NAME;
        answer := jsonb_build_object('error', jsonb_build_object('code', fault_code,
          'message', fault_message, 'detail', fault_detail, 'constraint', fault_constraint));
    END;
    answers := answers || jsonb_build_array(answer);
  END LOOP;
  RETURN answers;
END $$;

-- Runs the changes of one commit in their order: [{"call": name, "input": {...}}, ...]. Returns {answers:
-- [{value, payments?, jobs?} | {error}], others}. A change that fails is rolled back alone; one without
-- others fails the commit, which takes no subtransaction. The answers are kept under the id of the commit: the same commit again, which says that it is a repeat, waits for the
-- first one and then has no second effect. A first one that arrives after its repeat fails as a whole,
-- because the id is taken. `others`: other gateways live, whom the caller tells of the payments and jobs. A
-- gateway deletes its own rows of `commits` when it has their answers. `locks` are names that only one
-- commit has at a time. They are locked before any row and in one order. Without `is_kept` nothing is kept,
-- for changes that may run twice and report nothing. PostgreSQL prepares each expression again in each
-- transaction, so that the functions of every payment have few of them.
CREATE FUNCTION commit_changes(commit_id uuid, gateway uuid, changes jsonb, locks text[] DEFAULT NULL,
  is_repeat boolean DEFAULT true, is_kept boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  own_lock bigint := hashtextextended(commit_id::text, 0);
  answers jsonb;
  others boolean := false;
BEGIN
  -- A condition is evaluated in a tenth of the time of a statement.
  IF NOT pg_try_advisory_xact_lock(own_lock) THEN
    PERFORM pg_advisory_xact_lock(own_lock);
  END IF;
  IF is_repeat THEN
    -- The first one may be on this server only. A transaction that writes nothing waits for no standby.
    UPDATE commits SET at = clock_timestamp() WHERE id = commit_id RETURNING result INTO answers;
    IF FOUND THEN
      RETURN jsonb_build_object('answers', with_rows(answers), 'others', EXISTS (
        SELECT 1 FROM gateways WHERE gateways.id <> commit_changes.gateway));
    END IF;
  END IF;
  IF locks IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(lock) FROM (
      SELECT DISTINCT hashtextextended(name, 0) AS lock FROM unnest(locks) AS name
      ORDER BY lock) AS sorted;
  END IF;
  IF jsonb_array_length(changes) = 1 THEN
    answers := jsonb_build_array(call_change(changes->0));
  ELSE
    answers := run_changes(changes);
  END IF;
  IF is_kept THEN
    INSERT INTO commits (id, gateway, at, result)
    VALUES (commit_id, commit_changes.gateway, clock_timestamp(), answers)
    RETURNING EXISTS (SELECT 1 FROM gateways WHERE gateways.id <> commit_changes.gateway) INTO others;
  END IF;
  IF jsonb_path_exists(answers, '$[*].ids') THEN
    answers := with_rows(answers);
  END IF;
  RETURN jsonb_build_object('answers', answers, 'others', others);
END $$;
