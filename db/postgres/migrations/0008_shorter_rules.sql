-- The same rules in fewer expressions. PostgreSQL prepares each expression of a function again in each
-- transaction, and a match with a regular expression takes as long as ten comparisons. A row that is in
-- order, as nearly all are, is found so by one condition; only another one goes through the rules by name.
-- Texts of the same digits are matched together.
CREATE OR REPLACE FUNCTION payments_rules(fresh payments) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text;
BEGIN
  IF fresh.state IN ('broadcast', 'confirmed', 'reverted', 'expired')
    AND fresh.delivery IN ('none', 'delivering', 'delivered')
    AND num_nonnulls(fresh.log_index, fresh.block_number, fresh.confirmed_at)
      = 3 * (fresh.state = 'confirmed')::int
    AND fresh.attempts >= (fresh.delivery <> 'none')::int
    AND (fresh.delivery = 'delivered') = (fresh.delivered_at IS NOT NULL)
    AND num_nulls(fresh.redeem_token_hash, fresh.redeem_until) <> 1
    AND length(fresh.transaction_hash) = 66 AND fresh.transaction_hash ~ '^0x[0-9a-f]*$'
  THEN
    RETURN true;
  END IF;
  broken := CASE
    WHEN ((fresh.attempts >= 0) AND ((fresh.delivery = 'none') OR (fresh.attempts > 0)))
      IS FALSE THEN 'payments_attempts'
    WHEN (((fresh.state = 'confirmed') = (fresh.log_index IS NOT NULL)) AND ((fresh.state = 'confirmed')
      = (fresh.block_number IS NOT NULL)) AND ((fresh.state = 'confirmed') = (fresh.confirmed_at IS NOT
      NULL))) IS FALSE THEN 'payments_confirmed'
    WHEN ((fresh.delivery = 'delivered') = (fresh.delivered_at IS NOT NULL))
      IS FALSE THEN 'payments_delivered'
    WHEN (fresh.delivery IN ('none', 'delivering', 'delivered')) IS FALSE THEN 'payments_delivery'
    WHEN ((fresh.bound IN (false, true)) AND (fresh.truncated IN (false, true)) AND (fresh.answered IN
      (false, true))) IS FALSE THEN 'payments_flags'
    WHEN ((fresh.redeem_token_hash IS NULL) = (fresh.redeem_until IS NULL))
      IS FALSE THEN 'payments_redeemable'
    WHEN (fresh.state IN ('broadcast', 'confirmed', 'reverted', 'expired'))
      IS FALSE THEN 'payments_state'
    WHEN ((fresh.transaction_hash ~ '^0x[0-9a-f]*$') AND (length(fresh.transaction_hash) = 66))
      IS FALSE THEN 'payments_transaction'
  END;
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;

-- The rules of columns that never change, by name.
CREATE FUNCTION payments_fixed_rules(fresh payments) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.asset ~ '^0x[0-9a-fA-F]*$') AND (length(fresh.asset) = 42) AND (fresh.payer ~
      '^0x[0-9a-fA-F]*$') AND (length(fresh.payer) = 42) AND (fresh.payee ~ '^0x[0-9a-fA-F]*$') AND
      (length(fresh.payee) = 42)) IS FALSE THEN 'payments_addresses'
    WHEN ((fresh.amount_atomic ~ '^(0|[1-9][0-9]*)$') AND (fresh.amount_atomic <> '0'))
      IS FALSE THEN 'payments_amount'
    WHEN ((fresh.ceiling_atomic IS NULL) OR ((fresh.ceiling_atomic ~ '^[1-9][0-9]*$') AND (fresh.method =
      'permit2') AND (fresh.protocol = 'x402') AND ((length(fresh.amount_atomic) <
      length(fresh.ceiling_atomic)) OR ((length(fresh.amount_atomic) = length(fresh.ceiling_atomic)) AND
      (fresh.amount_atomic <= fresh.ceiling_atomic))))) IS FALSE THEN 'payments_ceiling'
    WHEN ((fresh.credential_hash IS NULL) OR ((fresh.protocol = 'x402') AND (fresh.credential_hash ~
      '^[0-9a-f]*$') AND (length(fresh.credential_hash) = 64))) IS FALSE THEN 'payments_credential'
    WHEN (((fresh.facilitator IS NULL) = (fresh.ceiling_atomic IS NULL)) AND ((fresh.facilitator IS NULL) OR
      (fresh.facilitator ~ '^0x[0-9a-fA-F]*$' AND length(fresh.facilitator) = 42)))
      IS FALSE THEN 'payments_facilitator'
    WHEN (fresh.method IN ('eip3009', 'permit2')) IS FALSE THEN 'payments_method'
    WHEN ((fresh.network = ('eip155:' || fresh.chain_id)) AND (fresh.chain_id > 0))
      IS FALSE THEN 'payments_network'
    WHEN ((fresh.nonce ~ '^0x[0-9a-f]*$') AND (length(fresh.nonce) = 66)) IS FALSE THEN 'payments_nonce'
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk')) IS FALSE THEN 'payments_product'
    WHEN (fresh.protocol IN ('mpp', 'x402')) IS FALSE THEN 'payments_protocol'
    WHEN ((fresh.valid_after ~ '^(0|[1-9][0-9]*)$') AND (fresh.valid_before ~ '^(0|[1-9][0-9]*)$'))
      IS FALSE THEN 'payments_window'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;
CREATE OR REPLACE FUNCTION payments_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Digits without a leading zero come after '1'.
  IF length(NEW.asset) = 42 AND length(NEW.payer) = 42 AND length(NEW.payee) = 42
    AND length(NEW.nonce) = 66 AND coalesce(length(NEW.credential_hash), 64) = 64
    AND starts_with(NEW.asset, '0x') AND starts_with(NEW.payer, '0x')
    AND starts_with(NEW.payee, '0x') AND starts_with(NEW.nonce, '0x')
    AND lower(substr(NEW.asset, 3) || substr(NEW.payer, 3) || substr(NEW.payee, 3))
      || substr(NEW.nonce, 3) || coalesce(NEW.credential_hash, '') ~ '^[0-9a-f]*$'
    AND NEW.amount_atomic || NEW.valid_after || NEW.valid_before ~ '^[0-9]*$'
    AND NEW.amount_atomic >= '1'
    AND (NEW.valid_after >= '1' OR NEW.valid_after = '0')
    AND (NEW.valid_before >= '1' OR NEW.valid_before = '0')
    AND num_nonnulls(NEW.ceiling_atomic, NEW.facilitator) = 0
    AND (NEW.protocol = 'x402' OR NEW.protocol = 'mpp' AND NEW.credential_hash IS NULL)
    AND NEW.method IN ('eip3009', 'permit2') AND NEW.product IN ('gateway', 'facilitator', 'desk')
    AND NEW.chain_id > 0 AND NEW.network = 'eip155:' || NEW.chain_id
    OR payments_fixed_rules(NEW)
  THEN
    RETURN NEW;
  END IF;
END $$;
CREATE FUNCTION transactions_fixed_rules(fresh transactions) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.relayer ~ '^0x[0-9a-fA-F]*$') AND (length(fresh.relayer) = 42) AND (fresh."to" ~
      '^0x[0-9a-fA-F]*$') AND (length(fresh."to") = 42)) IS FALSE THEN 'transactions_addresses'
    WHEN ((fresh.gas_limit ~ '^(0|[1-9][0-9]*)$') AND (fresh.max_fee_wei ~ '^(0|[1-9][0-9]*)$') AND
      (fresh.max_tip_wei ~ '^(0|[1-9][0-9]*)$')) IS FALSE THEN 'transactions_fees'
    WHEN ((fresh.hash ~ '^0x[0-9a-f]*$') AND (length(fresh.hash) = 66)) IS FALSE THEN 'transactions_hash'
    WHEN (fresh.kind IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'cancel'))
      IS FALSE THEN 'transactions_kind'
    WHEN (fresh.network ~ '^eip155:[1-9]') IS FALSE THEN 'transactions_network'
    WHEN (fresh.nonce >= 0) IS FALSE THEN 'transactions_nonce_range'
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor'))
      IS FALSE THEN 'transactions_product'
    WHEN (starts_with(fresh.raw, '0x02')) IS FALSE THEN 'transactions_raw'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'transactions',
    MESSAGE = format('new row for relation "transactions" violates check constraint "%s"', broken);
END $$;
CREATE OR REPLACE FUNCTION transactions_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF length(NEW.relayer) = 42 AND length(NEW."to") = 42 AND length(NEW.hash) = 66
    AND starts_with(NEW.relayer, '0x') AND starts_with(NEW."to", '0x') AND starts_with(NEW.hash, '0x')
    AND lower(substr(NEW.relayer, 3) || substr(NEW."to", 3)) || substr(NEW.hash, 3) ~ '^[0-9a-f]*$'
    AND NEW.gas_limit || NEW.max_fee_wei || NEW.max_tip_wei ~ '^[0-9]*$'
    AND (NEW.gas_limit >= '1' OR NEW.gas_limit = '0')
    AND (NEW.max_fee_wei >= '1' OR NEW.max_fee_wei = '0')
    AND (NEW.max_tip_wei >= '1' OR NEW.max_tip_wei = '0')
    AND NEW.kind IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'cancel')
    AND NEW.product IN ('gateway', 'facilitator', 'desk', 'sponsor')
    AND starts_with(NEW.network, 'eip155:') AND substr(NEW.network, 8) >= '1'
    AND substr(NEW.network, 8) < ':' AND NEW.nonce >= 0 AND starts_with(NEW.raw, '0x02')
    OR transactions_fixed_rules(NEW)
  THEN
    RETURN NEW;
  END IF;
END $$;

-- The relayer of a lane never changes, and each launch raises its nonce.
ALTER TABLE "lanes" DROP CONSTRAINT "lanes_rules",
  ADD CONSTRAINT "lanes_numbers" CHECK ("epoch" >= 0 AND "next_nonce" >= 0);
DROP FUNCTION lanes_rules;
CREATE FUNCTION lanes_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.relayer = 'keeper' OR NEW.relayer ~ '^0x[0-9a-fA-F]*$' AND length(NEW.relayer) = 42 THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = 'lanes_relayer', TABLE = 'lanes',
    MESSAGE = 'new row for relation "lanes" violates check constraint "lanes_relayer"';
END $$;
CREATE TRIGGER lanes_fixed BEFORE INSERT OR UPDATE OF relayer ON "lanes"
FOR EACH ROW EXECUTE FUNCTION lanes_fixed_rules();

CREATE OR REPLACE FUNCTION gas_spent_rules(fresh gas_spent) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text;
BEGIN
  -- The scale of a sum is the larger one.
  IF fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor')
    AND translate(fresh.day, '#0123456789', '?##########') = '####-##-##'
    AND substr(fresh.day, 6, 1) <= '1' AND substr(fresh.day, 9, 1) <= '3'
    AND least(fresh.wei, fresh.wasted_wei) >= 0 AND greatest(fresh.wei, fresh.wasted_wei) < 'Infinity'
    AND scale(fresh.wei + fresh.wasted_wei) = 0
  THEN
    RETURN true;
  END IF;
  broken := CASE
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor'))
      IS FALSE THEN 'gas_spent_product'
    WHEN (fresh.day ~ '^[0-9]{4}-[01][0-9]-[0-3][0-9]$') IS FALSE THEN 'gas_spent_day'
    WHEN ((fresh.wei >= 0) AND (fresh.wei < 'Infinity') AND (scale(fresh.wei) = 0))
      IS FALSE THEN 'gas_spent_wei'
    WHEN ((fresh.wasted_wei >= 0) AND (fresh.wasted_wei < 'Infinity') AND (scale(fresh.wasted_wei) = 0))
      IS FALSE THEN 'gas_spent_wasted_wei'
  END;
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'gas_spent',
    MESSAGE = format('new row for relation "gas_spent" violates check constraint "%s"', broken);
END $$;

-- No statement looks for a transaction by its nonce but among those that are included, which have an index
-- of their own. Old results of commits are found by their ids, which begin with the time.
DROP INDEX "transactions_nonce";
DROP INDEX "commits_at";
