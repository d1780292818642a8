-- The rules of a row as one expression, which names the broken one: the functions of
-- 0006_rules_as_functions.sql copied each column into a variable and ran a statement for each rule, which
-- took longer than to write the row. Rules of columns that never change are not looked at again when
-- others do: a trigger has them, which fails like a CHECK. A migration that changes a rule of these tables
-- replaces its function.
CREATE OR REPLACE FUNCTION payments_rules(fresh payments) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text := CASE
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
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;
CREATE FUNCTION payments_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((NEW.asset ~ '^0x[0-9a-fA-F]*$') AND (length(NEW.asset) = 42) AND (NEW.payer ~
      '^0x[0-9a-fA-F]*$') AND (length(NEW.payer) = 42) AND (NEW.payee ~ '^0x[0-9a-fA-F]*$') AND
      (length(NEW.payee) = 42)) IS FALSE THEN 'payments_addresses'
    WHEN ((NEW.amount_atomic ~ '^(0|[1-9][0-9]*)$') AND (NEW.amount_atomic <> '0'))
      IS FALSE THEN 'payments_amount'
    WHEN ((NEW.ceiling_atomic IS NULL) OR ((NEW.ceiling_atomic ~ '^[1-9][0-9]*$') AND (NEW.method =
      'permit2') AND (NEW.protocol = 'x402') AND ((length(NEW.amount_atomic) <
      length(NEW.ceiling_atomic)) OR ((length(NEW.amount_atomic) = length(NEW.ceiling_atomic)) AND
      (NEW.amount_atomic <= NEW.ceiling_atomic))))) IS FALSE THEN 'payments_ceiling'
    WHEN ((NEW.credential_hash IS NULL) OR ((NEW.protocol = 'x402') AND (NEW.credential_hash ~
      '^[0-9a-f]*$') AND (length(NEW.credential_hash) = 64))) IS FALSE THEN 'payments_credential'
    WHEN (((NEW.facilitator IS NULL) = (NEW.ceiling_atomic IS NULL)) AND ((NEW.facilitator IS NULL) OR
      (NEW.facilitator ~ '^0x[0-9a-fA-F]{40}$'))) IS FALSE THEN 'payments_facilitator'
    WHEN (NEW.method IN ('eip3009', 'permit2')) IS FALSE THEN 'payments_method'
    WHEN ((NEW.network = ('eip155:' || NEW.chain_id)) AND (NEW.chain_id > 0))
      IS FALSE THEN 'payments_network'
    WHEN ((NEW.nonce ~ '^0x[0-9a-f]*$') AND (length(NEW.nonce) = 66)) IS FALSE THEN 'payments_nonce'
    WHEN (NEW.product IN ('gateway', 'facilitator', 'desk')) IS FALSE THEN 'payments_product'
    WHEN (NEW.protocol IN ('mpp', 'x402')) IS FALSE THEN 'payments_protocol'
    WHEN ((NEW.valid_after ~ '^(0|[1-9][0-9]*)$') AND (NEW.valid_before ~ '^(0|[1-9][0-9]*)$'))
      IS FALSE THEN 'payments_window'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;
CREATE TRIGGER payments_fixed BEFORE INSERT OR UPDATE OF
  asset, payer, payee, amount_atomic, ceiling_atomic, method, protocol, credential_hash,
  facilitator, network, chain_id, nonce, product, valid_after, valid_before
ON "payments" FOR EACH ROW EXECUTE FUNCTION payments_fixed_rules();
CREATE OR REPLACE FUNCTION transactions_rules(fresh transactions) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.cost_wei IS NULL) OR ((fresh.cost_wei ~ '^(0|[1-9][0-9]*)$') AND (fresh.state IN
      ('mined', 'failed')))) IS FALSE THEN 'transactions_cost'
    WHEN ((fresh.state IN ('mined', 'failed')) = (fresh.block_number IS NOT NULL))
      IS FALSE THEN 'transactions_included_block'
    WHEN ((fresh.state NOT IN ('sent', 'mined', 'failed')) OR (fresh.first_sent_at IS NOT NULL))
      IS FALSE THEN 'transactions_sent'
    WHEN ((fresh.state <> 'signed') OR (fresh.first_sent_at IS NULL))
      IS FALSE THEN 'transactions_signed'
    WHEN (fresh.state IN ('signed', 'sent', 'mined', 'failed', 'replaced'))
      IS FALSE THEN 'transactions_state'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'transactions',
    MESSAGE = format('new row for relation "transactions" violates check constraint "%s"', broken);
END $$;
CREATE FUNCTION transactions_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((NEW.relayer ~ '^0x[0-9a-fA-F]*$') AND (length(NEW.relayer) = 42) AND (NEW."to" ~
      '^0x[0-9a-fA-F]*$') AND (length(NEW."to") = 42)) IS FALSE THEN 'transactions_addresses'
    WHEN ((NEW.gas_limit ~ '^(0|[1-9][0-9]*)$') AND (NEW.max_fee_wei ~ '^(0|[1-9][0-9]*)$') AND
      (NEW.max_tip_wei ~ '^(0|[1-9][0-9]*)$')) IS FALSE THEN 'transactions_fees'
    WHEN ((NEW.hash ~ '^0x[0-9a-f]*$') AND (length(NEW.hash) = 66)) IS FALSE THEN 'transactions_hash'
    WHEN (NEW.kind IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'cancel'))
      IS FALSE THEN 'transactions_kind'
    WHEN (NEW.network ~ '^eip155:[1-9]') IS FALSE THEN 'transactions_network'
    WHEN (NEW.nonce >= 0) IS FALSE THEN 'transactions_nonce_range'
    WHEN (NEW.product IN ('gateway', 'facilitator', 'desk', 'sponsor'))
      IS FALSE THEN 'transactions_product'
    WHEN (starts_with(NEW.raw, '0x02')) IS FALSE THEN 'transactions_raw'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'transactions',
    MESSAGE = format('new row for relation "transactions" violates check constraint "%s"', broken);
END $$;
CREATE TRIGGER transactions_fixed BEFORE INSERT OR UPDATE OF
  relayer, "to", gas_limit, max_fee_wei, max_tip_wei, hash, kind, network, nonce, product, raw
ON "transactions" FOR EACH ROW EXECUTE FUNCTION transactions_fixed_rules();

-- The same for two tables of which each payment changes a row. PostgreSQL parses and compiles the CHECKs
-- of a table at each statement.
CREATE OR REPLACE FUNCTION gas_spent_rules(fresh gas_spent) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text := CASE
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor'))
      IS FALSE THEN 'gas_spent_product'
    WHEN (fresh.day ~ '^[0-9]{4}-[01][0-9]-[0-3][0-9]$') IS FALSE THEN 'gas_spent_day'
    WHEN ((fresh.wei >= 0) AND (fresh.wei < 'Infinity') AND (scale(fresh.wei) = 0))
      IS FALSE THEN 'gas_spent_wei'
    WHEN ((fresh.wasted_wei >= 0) AND (fresh.wasted_wei < 'Infinity') AND (scale(fresh.wasted_wei) = 0))
      IS FALSE THEN 'gas_spent_wasted_wei'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'gas_spent',
    MESSAGE = format('new row for relation "gas_spent" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "gas_spent" DROP CONSTRAINT "gas_spent_product", DROP CONSTRAINT "gas_spent_day",
  DROP CONSTRAINT "gas_spent_wei", DROP CONSTRAINT "gas_spent_wasted_wei",
  ADD CONSTRAINT "gas_spent_rules" CHECK (gas_spent_rules("gas_spent".*));
CREATE OR REPLACE FUNCTION lanes_rules(fresh lanes) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.relayer = 'keeper') OR (fresh.relayer ~ '^0x[0-9a-fA-F]{40}$'))
      IS FALSE THEN 'lanes_relayer'
    WHEN ((fresh.epoch >= 0) AND (fresh.next_nonce >= 0)) IS FALSE THEN 'lanes_numbers'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'lanes',
    MESSAGE = format('new row for relation "lanes" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "lanes" DROP CONSTRAINT "lanes_relayer", DROP CONSTRAINT "lanes_numbers",
  ADD CONSTRAINT "lanes_rules" CHECK (lanes_rules("lanes".*));

-- As in 0002_rules.sql. The lock is nearly always free, and then it needs no statement.
CREATE OR REPLACE FUNCTION refuse_authorized_money() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  money bigint :=
    hashtextextended(NEW.network || lower(NEW.asset) || lower(NEW.payer) || NEW.nonce, 1);
BEGIN
  IF NOT pg_try_advisory_xact_lock(money) THEN
    PERFORM pg_advisory_xact_lock(money);
  END IF;
  IF EXISTS (
    SELECT 1 FROM authorizations AS a
    WHERE a.network = NEW.network AND lower(a.asset) = lower(NEW.asset)
      AND lower(a.payer) = lower(NEW.payer) AND a.nonce = NEW.nonce
      AND NOT (a.id = NEW.id AND a.state = 'sent' AND a.charge_atomic = NEW.amount_atomic)
  ) THEN
    RAISE EXCEPTION USING ERRCODE = 'TP003', MESSAGE = 'money-authorized', CONSTRAINT = TG_NAME,
      DETAIL = NEW.id, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;

-- Old results of a gateway are found by their age alone.
DROP INDEX "commits_age";
