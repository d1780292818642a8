CREATE TABLE `orders` (
	`id` text PRIMARY KEY NOT NULL,
	`payment_id` text NOT NULL,
	`network` text NOT NULL,
	`symbol` text NOT NULL,
	`token` text COLLATE NOCASE NOT NULL,
	`pool` text COLLATE NOCASE NOT NULL,
	`pool_fee` integer NOT NULL,
	`payer` text COLLATE NOCASE NOT NULL,
	`recipient` text COLLATE NOCASE NOT NULL,
	`usdg_atomic` text NOT NULL,
	`total_atomic` text NOT NULL,
	`quoted_atomic` text NOT NULL,
	`floor_atomic` text NOT NULL,
	`state` text NOT NULL,
	`settlement_tx` text NOT NULL,
	`swap_tx` text,
	`refund_tx` text,
	`delivered_atomic` text,
	`refund_reason` text,
	`held_reason` text,
	`refund_attempts` integer DEFAULT 0 NOT NULL,
	`retry_at` integer,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	`settled_at` integer,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "orders_id" CHECK(length("orders"."id") = 36 AND "orders"."id" GLOB 'ord_*'),
	CONSTRAINT "orders_network" CHECK("orders"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "orders_addresses" CHECK(length("orders"."token") = 42 AND "orders"."token" GLOB '0x*' AND substr("orders"."token", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("orders"."pool") = 42 AND "orders"."pool" GLOB '0x*' AND substr("orders"."pool", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("orders"."payer") = 42 AND "orders"."payer" GLOB '0x*' AND substr("orders"."payer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("orders"."recipient") = 42 AND "orders"."recipient" GLOB '0x*' AND substr("orders"."recipient", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "orders_amounts" CHECK(typeof("orders"."usdg_atomic") = 'text' AND "orders"."usdg_atomic" <> '' AND "orders"."usdg_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."usdg_atomic" = '0' OR "orders"."usdg_atomic" NOT GLOB '0*') AND "orders"."usdg_atomic" <> '0' AND typeof("orders"."total_atomic") = 'text' AND "orders"."total_atomic" <> '' AND "orders"."total_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."total_atomic" = '0' OR "orders"."total_atomic" NOT GLOB '0*') AND "orders"."total_atomic" <> '0' AND typeof("orders"."quoted_atomic") = 'text' AND "orders"."quoted_atomic" <> '' AND "orders"."quoted_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."quoted_atomic" = '0' OR "orders"."quoted_atomic" NOT GLOB '0*') AND typeof("orders"."floor_atomic") = 'text' AND "orders"."floor_atomic" <> '' AND "orders"."floor_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."floor_atomic" = '0' OR "orders"."floor_atomic" NOT GLOB '0*') AND "orders"."floor_atomic" <> '0'),
	CONSTRAINT "orders_state" CHECK("orders"."state" IN ('settling', 'settled', 'swapping', 'delivered', 'refunding', 'refunded', 'held', 'failed')),
	CONSTRAINT "orders_settlement" CHECK(length("orders"."settlement_tx") = 66 AND "orders"."settlement_tx" GLOB '0x*' AND substr("orders"."settlement_tx", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "orders_swap" CHECK("orders"."swap_tx" IS NULL OR length("orders"."swap_tx") = 66 AND "orders"."swap_tx" GLOB '0x*' AND substr("orders"."swap_tx", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "orders_refund" CHECK("orders"."refund_tx" IS NULL OR length("orders"."refund_tx") = 66 AND "orders"."refund_tx" GLOB '0x*' AND substr("orders"."refund_tx", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "orders_unsent" CHECK("orders"."state" NOT IN ('settling', 'settled', 'failed') OR ("orders"."swap_tx" IS NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_swapped" CHECK("orders"."state" NOT IN ('swapping', 'delivered') OR ("orders"."swap_tx" IS NOT NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_delivered" CHECK(("orders"."state" = 'delivered') = ("orders"."delivered_atomic" IS NOT NULL) AND ("orders"."delivered_atomic" IS NULL OR (typeof("orders"."delivered_atomic") = 'text' AND "orders"."delivered_atomic" <> '' AND "orders"."delivered_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."delivered_atomic" = '0' OR "orders"."delivered_atomic" NOT GLOB '0*') AND "orders"."delivered_atomic" <> '0'))),
	CONSTRAINT "orders_refunding" CHECK("orders"."state" NOT IN ('refunding', 'refunded') OR "orders"."refund_reason" IS NOT NULL),
	CONSTRAINT "orders_refunded" CHECK("orders"."state" <> 'refunded' OR ("orders"."refund_tx" IS NOT NULL AND "orders"."refund_attempts" > 0)),
	CONSTRAINT "orders_attempts" CHECK("orders"."refund_attempts" >= 0 AND ("orders"."refund_tx" IS NULL OR ("orders"."refund_reason" IS NOT NULL AND "orders"."refund_attempts" > 0))),
	CONSTRAINT "orders_held" CHECK(("orders"."state" = 'held') = ("orders"."held_reason" IS NOT NULL)),
	CONSTRAINT "orders_retry" CHECK("orders"."retry_at" IS NULL OR "orders"."state" = 'held'),
	CONSTRAINT "orders_settled" CHECK("orders"."state" IN ('settling', 'failed') OR "orders"."settled_at" IS NOT NULL)
);
--> statement-breakpoint
CREATE INDEX `orders_payer` ON `orders` (`payer`,`id`);--> statement-breakpoint
CREATE INDEX `orders_unfinished` ON `orders` (`state`) WHERE state IN ('settling', 'settled', 'swapping', 'refunding', 'held');--> statement-breakpoint
CREATE UNIQUE INDEX `orders_payment` ON `orders` (`payment_id`);--> statement-breakpoint
CREATE TRIGGER `orders_transitions` BEFORE UPDATE OF `state` ON `orders`
WHEN old.state <> new.state AND (old.state, new.state) NOT IN (VALUES
	('settling', 'settled'),
	('settling', 'failed'),
	('settled', 'settling'),
	('settled', 'swapping'),
	('settled', 'refunding'),
	('swapping', 'delivered'),
	('swapping', 'refunding'),
	('swapping', 'held'),
	('delivered', 'swapping'),
	('refunding', 'refunded'),
	('refunding', 'held'),
	('refunding', 'swapping'),
	('refunded', 'refunding'),
	('held', 'swapping'),
	('held', 'refunding')
)
BEGIN
	SELECT RAISE(ABORT, 'an order does not change its state like that');
END;
--> statement-breakpoint
CREATE TRIGGER `orders_agreed` BEFORE UPDATE ON `orders`
WHEN old.id IS NOT new.id
 OR old.payment_id IS NOT new.payment_id
 OR old.network IS NOT new.network
 OR old.symbol IS NOT new.symbol
 OR old.token IS NOT new.token
 OR old.pool IS NOT new.pool
 OR old.pool_fee IS NOT new.pool_fee
 OR old.payer IS NOT new.payer
 OR old.recipient IS NOT new.recipient
 OR old.usdg_atomic IS NOT new.usdg_atomic
 OR old.total_atomic IS NOT new.total_atomic
 OR old.quoted_atomic IS NOT new.quoted_atomic
 OR old.floor_atomic IS NOT new.floor_atomic
 OR old.created_at IS NOT new.created_at
BEGIN
	SELECT RAISE(ABORT, 'what an order was agreed on does not change');
END;
--> statement-breakpoint
CREATE TRIGGER `orders_swapped_once` BEFORE UPDATE OF `swap_tx` ON `orders`
WHEN old.swap_tx IS NOT NULL AND new.swap_tx IS NULL
BEGIN
	SELECT RAISE(ABORT, 'a swap that was written is not forgotten');
END;
--> statement-breakpoint
CREATE TRIGGER `orders_kept` BEFORE DELETE ON `orders`
BEGIN
	SELECT RAISE(ABORT, 'an order is never deleted');
END;

--> statement-breakpoint
CREATE TRIGGER `orders_swap_not_refunded` BEFORE UPDATE OF `state` ON `orders`
WHEN old.state = 'held' AND new.state = 'refunding' AND old.refund_reason IS NULL
BEGIN
	SELECT RAISE(ABORT, 'a swap that succeeded is not refunded');
END;
