-- A transaction of ours may be mined after its order had failed: the desk has the money then.
DROP TRIGGER orders_transitions ON orders;
CREATE TRIGGER orders_transitions BEFORE UPDATE OF "state" ON "orders"
FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
  ('settling', 'settled'),
  ('settling', 'failed'),
  ('failed', 'settling'),
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
