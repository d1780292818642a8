-- A transaction of ours may be mined after its order had failed: the desk has the money then.
DROP TRIGGER `orders_transitions`;
--> statement-breakpoint
CREATE TRIGGER `orders_transitions` BEFORE UPDATE OF `state` ON `orders`
WHEN old.state <> new.state AND (old.state, new.state) NOT IN (VALUES
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
)
BEGIN
	SELECT RAISE(ABORT, 'an order does not change its state like that');
END;
