CREATE TABLE `grants` (
	`network` text NOT NULL,
	`address` text COLLATE NOCASE NOT NULL,
	`token` text COLLATE NOCASE NOT NULL,
	`kind` text NOT NULL,
	`transaction_hash` text NOT NULL,
	`amount_wei` text NOT NULL,
	`fee_wei` text NOT NULL,
	`approve_hash` text,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`network`, `address`),
	CONSTRAINT "grants_kind" CHECK("grants"."kind" IN ('grant', 'approval')),
	CONSTRAINT "grants_network" CHECK("grants"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "grants_addresses" CHECK(length("grants"."address") = 42 AND "grants"."address" GLOB '0x*' AND substr("grants"."address", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("grants"."token") = 42 AND "grants"."token" GLOB '0x*' AND substr("grants"."token", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "grants_transaction" CHECK(length("grants"."transaction_hash") = 66 AND "grants"."transaction_hash" GLOB '0x*' AND substr("grants"."transaction_hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "grants_amounts" CHECK(typeof("grants"."amount_wei") = 'text' AND "grants"."amount_wei" <> '' AND "grants"."amount_wei" NOT GLOB '*[^0-9]*' AND ("grants"."amount_wei" = '0' OR "grants"."amount_wei" NOT GLOB '0*') AND "grants"."amount_wei" <> '0' AND typeof("grants"."fee_wei") = 'text' AND "grants"."fee_wei" <> '' AND "grants"."fee_wei" NOT GLOB '*[^0-9]*' AND ("grants"."fee_wei" = '0' OR "grants"."fee_wei" NOT GLOB '0*')),
	CONSTRAINT "grants_approve" CHECK(("grants"."kind" = 'approval') = ("grants"."approve_hash" IS NOT NULL) AND ("grants"."approve_hash" IS NULL OR (length("grants"."approve_hash") = 66 AND "grants"."approve_hash" GLOB '0x*' AND substr("grants"."approve_hash", 3) NOT GLOB '*[^0-9a-f]*')))
);
--> statement-breakpoint
CREATE INDEX `grants_day` ON `grants` (`network`,`created_at`);