-- What the migrations of SQLite add to its tables: rules between columns, and triggers. The errors of
-- triggers have the constraint's name: SQLSTATE TP003 keeps the money of payments and authorizations
-- apart, and TP004 is a change that the code never makes.
ALTER TABLE "payments" ADD CONSTRAINT "payments_ceiling" CHECK ("ceiling_atomic" IS NULL OR ("ceiling_atomic" ~ '^[1-9][0-9]*$' AND "method" = 'permit2' AND "protocol" = 'x402' AND (length("amount_atomic") < length("ceiling_atomic") OR (length("amount_atomic") = length("ceiling_atomic") AND "amount_atomic" <= "ceiling_atomic"))));
ALTER TABLE "payments" ADD CONSTRAINT "payments_facilitator" CHECK (("facilitator" IS NULL) = ("ceiling_atomic" IS NULL) AND ("facilitator" IS NULL OR "facilitator" ~ '^0x[0-9a-fA-F]{40}$'));
ALTER TABLE "transactions" ADD CONSTRAINT "transactions_cost" CHECK ("cost_wei" IS NULL OR ("cost_wei" ~ '^(0|[1-9][0-9]*)$' AND "state" IN ('mined', 'failed')));
-- Only a swap that delivered gives change, and never more than a decimal above zero.
ALTER TABLE "orders" ADD CONSTRAINT "orders_returned" CHECK ("returned_atomic" IS NULL OR ("state" = 'delivered' AND "returned_atomic" ~ '^[1-9][0-9]*$'));

-- Refuses a change. Its message is the argument of the trigger.
CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'TP004', MESSAGE = TG_ARGV[0], CONSTRAINT = TG_NAME,
    TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

-- Money is authorized or paid once. Only the payment with the id of a sent authorization settles its
-- money. The detail is the payment's id. The lock serialises writes of the same money, because of two
-- commits that run side by side neither sees the other. Commits insert in the order of their money.
CREATE FUNCTION refuse_authorized_money() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(
    hashtextextended(NEW.network || lower(NEW.asset) || lower(NEW.payer) || NEW.nonce, 1));
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
CREATE TRIGGER payments_authorized BEFORE INSERT ON "payments"
FOR EACH ROW EXECUTE FUNCTION refuse_authorized_money();

CREATE FUNCTION refuse_paid_money() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(
    hashtextextended(NEW.network || lower(NEW.asset) || lower(NEW.payer) || NEW.nonce, 1));
  IF EXISTS (
    SELECT 1 FROM payments AS p
    WHERE p.network = NEW.network AND lower(p.asset) = lower(NEW.asset)
      AND lower(p.payer) = lower(NEW.payer) AND p.nonce = NEW.nonce
  ) THEN
    RAISE EXCEPTION USING ERRCODE = 'TP003', MESSAGE = 'money-paid', CONSTRAINT = TG_NAME,
      DETAIL = NEW.id, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER authorizations_paid BEFORE INSERT ON "authorizations"
FOR EACH ROW EXECUTE FUNCTION refuse_paid_money();

CREATE TRIGGER authorizations_transitions BEFORE UPDATE OF "state" ON "authorizations"
FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
  ('authorized', 'metered'),
  ('authorized', 'void'),
  ('metered', 'sent'),
  ('metered', 'failed')
))
EXECUTE FUNCTION forbid_change('an authorization does not change its state like that');
CREATE TRIGGER authorizations_agreed BEFORE UPDATE ON "authorizations"
FOR EACH ROW WHEN (
  (OLD.network, lower(OLD.asset), lower(OLD.payer), lower(OLD.payee), OLD.ceiling_atomic, lower(OLD.facilitator), OLD.nonce, OLD.valid_after, OLD.valid_before, OLD.signature)
  IS DISTINCT FROM (NEW.network, lower(NEW.asset), lower(NEW.payer), lower(NEW.payee), NEW.ceiling_atomic, lower(NEW.facilitator), NEW.nonce, NEW.valid_after, NEW.valid_before, NEW.signature)
  OR (OLD.charge_atomic IS NOT NULL AND NEW.charge_atomic IS DISTINCT FROM OLD.charge_atomic)
)
EXECUTE FUNCTION forbid_change('what was authorized and charged does not change');
CREATE TRIGGER authorizations_kept BEFORE DELETE ON "authorizations"
FOR EACH ROW EXECUTE FUNCTION forbid_change('an authorization is never deleted');

CREATE TRIGGER orders_transitions BEFORE UPDATE OF "state" ON "orders"
FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
  ('settling', 'settled'),
  ('settling', 'failed'),
  ('settled', 'settling'),
  ('settled', 'swapping'),
  ('settled', 'refunding'),
  ('settled', 'held'),
  ('swapping', 'delivered'),
  ('swapping', 'refunding'),
  ('swapping', 'held'),
  ('delivered', 'swapping'),
  ('refunding', 'refunded'),
  ('refunding', 'held'),
  ('refunding', 'swapping'),
  ('refunded', 'refunding'),
  ('held', 'settled'),
  ('held', 'swapping'),
  ('held', 'refunding')
))
EXECUTE FUNCTION forbid_change('an order does not change its state like that');
CREATE TRIGGER orders_agreed BEFORE UPDATE ON "orders"
FOR EACH ROW WHEN (
  (OLD.id, OLD.payment_id, OLD.network, OLD.symbol, lower(OLD.token), lower(OLD.pool), OLD.pool_fee, lower(OLD.payer), lower(OLD.recipient), OLD.usdg_atomic, OLD.total_atomic, OLD.quoted_atomic, OLD.floor_atomic, OLD.created_at)
  IS DISTINCT FROM (NEW.id, NEW.payment_id, NEW.network, NEW.symbol, lower(NEW.token), lower(NEW.pool), NEW.pool_fee, lower(NEW.payer), lower(NEW.recipient), NEW.usdg_atomic, NEW.total_atomic, NEW.quoted_atomic, NEW.floor_atomic, NEW.created_at)
)
EXECUTE FUNCTION forbid_change('what an order was agreed on does not change');
CREATE TRIGGER orders_swapped_once BEFORE UPDATE OF "swap_tx" ON "orders"
FOR EACH ROW WHEN (OLD.swap_tx IS NOT NULL AND NEW.swap_tx IS NULL)
EXECUTE FUNCTION forbid_change('a swap that was written is not forgotten');
CREATE TRIGGER orders_swap_not_refunded BEFORE UPDATE OF "state" ON "orders"
FOR EACH ROW WHEN (OLD.state = 'held' AND NEW.state = 'refunding' AND OLD.refund_reason IS NULL)
EXECUTE FUNCTION forbid_change('a swap that succeeded is not refunded');
CREATE TRIGGER orders_kept BEFORE DELETE ON "orders"
FOR EACH ROW EXECUTE FUNCTION forbid_change('an order is never deleted');

-- A foreign key ignores no letter case. Grants are never deleted.
CREATE FUNCTION assert_granted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM grants AS g
  WHERE g.network = NEW.network AND lower(g.address) = lower(NEW.address) FOR KEY SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation', CONSTRAINT = TG_NAME,
      MESSAGE = 'a top-up needs a grant', TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER grant_top_ups_granted BEFORE INSERT ON "grant_top_ups"
FOR EACH ROW EXECUTE FUNCTION assert_granted();
