-- The CHECKs of the tables that every payment changes become one CHECK of each table, which calls a
-- function. PostgreSQL parses and compiles all CHECKs of a table at each statement that writes to it,
-- 0.3 ms for payments, and keeps the compiled expressions of a function for the session. The function
-- reports a broken rule by its name, like the CHECK. A migration that adds or changes a rule of these
-- tables replaces the function, because drizzle-kit knows the rules as CHECKs.
DO $do$
DECLARE
  target regclass;
  columns text;
  rules text;
  drops text;
BEGIN
  FOREACH target IN ARRAY ARRAY['payments', 'transactions']::regclass[] LOOP
    -- A rule finds a column as a variable of that name.
    SELECT string_agg(format('  %I %s%s := fresh.%I;', attname, atttypid::regtype,
      CASE WHEN attcollation <> 0 THEN ' COLLATE "C"' ELSE '' END, attname), E'\n' ORDER BY attnum)
    INTO columns FROM pg_attribute
    WHERE attrelid = target AND attnum > 0 AND NOT attisdropped AND attnum IN (
      SELECT unnest(conkey) FROM pg_constraint WHERE conrelid = target AND contype = 'c');
    SELECT string_agg(format(
        E'  IF (%s) IS FALSE THEN\n    RAISE EXCEPTION USING ERRCODE = %L,\n'
        || E'      MESSAGE = %L,\n      CONSTRAINT = %L, TABLE = %L;\n  END IF;',
        pg_get_expr(conbin, conrelid), '23514',
        format('new row for relation "%s" violates check constraint "%s"', target, conname),
        conname, target::text), E'\n' ORDER BY conname),
      string_agg(format('DROP CONSTRAINT %I', conname), ', ')
    INTO rules, drops FROM pg_constraint WHERE conrelid = target AND contype = 'c';
    EXECUTE format(
      E'CREATE FUNCTION %I(fresh %s) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$\nDECLARE\n'
      || E'%s\nBEGIN\n%s\n  RETURN true;\nEND $$', target || '_rules', target, columns, rules);
    EXECUTE format('ALTER TABLE %s %s, ADD CONSTRAINT %I CHECK (%I(%s.*))',
      target, drops, target || '_rules', target || '_rules', target);
  END LOOP;
END $do$;
