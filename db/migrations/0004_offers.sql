CREATE TABLE `offers` (
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`network` text NOT NULL,
	`asset` text COLLATE NOCASE NOT NULL,
	`pay_to` text COLLATE NOCASE NOT NULL,
	`amount_atomic` text NOT NULL,
	`retired_at` integer NOT NULL,
	PRIMARY KEY(`merchant`, `route`, `network`, `asset`, `pay_to`, `amount_atomic`),
	CONSTRAINT "offers_addresses" CHECK(length("offers"."asset") = 42 AND "offers"."asset" GLOB '0x*' AND substr("offers"."asset", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "offers_payee" CHECK(length("offers"."pay_to") = 42 AND "offers"."pay_to" GLOB '0x*' AND substr("offers"."pay_to", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "offers_amount" CHECK(typeof("offers"."amount_atomic") = 'text' AND "offers"."amount_atomic" <> '' AND "offers"."amount_atomic" NOT GLOB '*[^0-9]*' AND ("offers"."amount_atomic" = '0' OR "offers"."amount_atomic" NOT GLOB '0*'))
);
