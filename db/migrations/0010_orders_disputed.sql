-- An order whose payment two nodes tell differently is held before anything is sent, and goes on later.
DROP TRIGGER `orders_transitions`;
--> statement-breakpoint
CREATE TRIGGER `orders_transitions` BEFORE UPDATE OF `state` ON `orders`
WHEN old.state <> new.state AND (old.state, new.state) NOT IN (VALUES
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
)
BEGIN
	SELECT RAISE(ABORT, 'an order does not change its state like that');
END;
