-- One more transfer to an address whose grant became too small before it was used: once, for ever.
CREATE TABLE `grant_top_ups` (
	`network` text NOT NULL,
	`address` text COLLATE NOCASE NOT NULL,
	`transaction_hash` text NOT NULL,
	`amount_wei` text NOT NULL,
	`fee_wei` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`network`, `address`),
	FOREIGN KEY (`network`,`address`) REFERENCES `grants`(`network`,`address`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "grant_top_ups_transaction" CHECK(length("grant_top_ups"."transaction_hash") = 66 AND "grant_top_ups"."transaction_hash" GLOB '0x*' AND substr("grant_top_ups"."transaction_hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "grant_top_ups_amounts" CHECK(typeof("grant_top_ups"."amount_wei") = 'text' AND "grant_top_ups"."amount_wei" <> '' AND "grant_top_ups"."amount_wei" NOT GLOB '*[^0-9]*' AND "grant_top_ups"."amount_wei" NOT GLOB '0*' AND typeof("grant_top_ups"."fee_wei") = 'text' AND "grant_top_ups"."fee_wei" <> '' AND "grant_top_ups"."fee_wei" NOT GLOB '*[^0-9]*' AND ("grant_top_ups"."fee_wei" = '0' OR "grant_top_ups"."fee_wei" NOT GLOB '0*'))
);
--> statement-breakpoint
CREATE INDEX `grant_top_ups_day` ON `grant_top_ups` (`network`,`created_at`);
