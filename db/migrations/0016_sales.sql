-- Figures of sales: what each transaction cost, requests by hour, and the accounts and assets of this service.
CREATE TABLE `assets` (
	`network` text NOT NULL,
	`address` text COLLATE NOCASE NOT NULL,
	`network_name` text NOT NULL,
	`symbol` text NOT NULL,
	`decimals` integer NOT NULL,
	`coin_usd` text NOT NULL,
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`network`, `address`),
	CONSTRAINT "assets_address" CHECK(length("assets"."address") = 42 AND "assets"."address" GLOB '0x*' AND substr("assets"."address", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "assets_decimals" CHECK("assets"."decimals" BETWEEN 0 AND 36)
);
--> statement-breakpoint
CREATE TABLE `hours` (
	`hour` integer NOT NULL,
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`asked` integer NOT NULL,
	`paid` integer NOT NULL,
	`failed` integer NOT NULL,
	PRIMARY KEY(`hour`, `merchant`, `route`),
	CONSTRAINT "hours_hour" CHECK("hours"."hour" >= 0 AND "hours"."hour" % 3600000 = 0),
	CONSTRAINT "hours_counts" CHECK("hours"."asked" >= 0 AND "hours"."paid" >= 0 AND "hours"."failed" >= 0)
) WITHOUT ROWID;
--> statement-breakpoint
CREATE TABLE `own_accounts` (
	`address` text COLLATE NOCASE PRIMARY KEY NOT NULL,
	`added_at` integer NOT NULL,
	CONSTRAINT "own_accounts_address" CHECK(length("own_accounts"."address") = 42 AND "own_accounts"."address" GLOB '0x*' AND substr("own_accounts"."address", 3) NOT GLOB '*[^0-9a-fA-F]*')
);
--> statement-breakpoint
ALTER TABLE `transactions` ADD `cost_wei` text CHECK (`cost_wei` IS NULL OR (typeof(`cost_wei`) = 'text' AND `cost_wei` <> '' AND `cost_wei` NOT GLOB '*[^0-9]*' AND (`cost_wei` = '0' OR `cost_wei` NOT GLOB '0*') AND `state` IN ('mined', 'failed')));--> statement-breakpoint
CREATE INDEX `transactions_unpaid` ON `transactions` (`created_at`) WHERE kind NOT IN ('payment', 'batch');--> statement-breakpoint
-- What the accounts of earlier configurations pay is no sale either.
INSERT OR IGNORE INTO `own_accounts` (`address`, `added_at`) SELECT `relayer`, min(`created_at`) FROM `transactions` GROUP BY `relayer`;--> statement-breakpoint
INSERT OR IGNORE INTO `own_accounts` (`address`, `added_at`) SELECT `payee`, min(`created_at`) FROM `payments` WHERE `product` IN ('gateway', 'desk') GROUP BY `payee`;
