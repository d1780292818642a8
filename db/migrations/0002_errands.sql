CREATE TABLE `errand_transactions` (
	`errand_id` text NOT NULL,
	`transaction_hash` text PRIMARY KEY NOT NULL,
	FOREIGN KEY (`errand_id`) REFERENCES `errands`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`transaction_hash`) REFERENCES `transactions`(`hash`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `errand_transactions_errand` ON `errand_transactions` (`errand_id`);--> statement-breakpoint
CREATE TABLE `errands` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`product` text NOT NULL,
	`network` text NOT NULL,
	`relayer` text COLLATE NOCASE NOT NULL,
	`nonce` integer NOT NULL,
	`to` text COLLATE NOCASE NOT NULL,
	`value_wei` text NOT NULL,
	`state` text NOT NULL,
	`transaction_hash` text NOT NULL,
	`block_number` integer,
	`receipt` text,
	`created_at` integer NOT NULL,
	`ended_at` integer,
	CONSTRAINT "errands_kind" CHECK("errands"."kind" IN ('swap', 'refund', 'grant', 'allowance')),
	CONSTRAINT "errands_product" CHECK("errands"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "errands_network" CHECK("errands"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "errands_nonce" CHECK("errands"."nonce" >= 0),
	CONSTRAINT "errands_addresses" CHECK(length("errands"."relayer") = 42 AND "errands"."relayer" GLOB '0x*' AND substr("errands"."relayer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("errands"."to") = 42 AND "errands"."to" GLOB '0x*' AND substr("errands"."to", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "errands_value" CHECK(typeof("errands"."value_wei") = 'text' AND "errands"."value_wei" <> '' AND "errands"."value_wei" NOT GLOB '*[^0-9]*' AND ("errands"."value_wei" = '0' OR "errands"."value_wei" NOT GLOB '0*')),
	CONSTRAINT "errands_state" CHECK("errands"."state" IN ('broadcast', 'confirmed', 'failed', 'replaced')),
	CONSTRAINT "errands_transaction" CHECK(length("errands"."transaction_hash") = 66 AND "errands"."transaction_hash" GLOB '0x*' AND substr("errands"."transaction_hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "errands_included" CHECK(("errands"."state" IN ('confirmed', 'failed')) = ("errands"."block_number" IS NOT NULL) AND ("errands"."state" IN ('confirmed', 'failed')) = ("errands"."receipt" IS NOT NULL)),
	CONSTRAINT "errands_ended" CHECK(("errands"."state" = 'broadcast') = ("errands"."ended_at" IS NULL)),
	CONSTRAINT "errands_receipt" CHECK("errands"."receipt" IS NULL OR json_valid("errands"."receipt"))
);
--> statement-breakpoint
CREATE INDEX `errands_unfinished` ON `errands` (`state`) WHERE state = 'broadcast';--> statement-breakpoint
ALTER TABLE `payments` ADD `permit2612_value` text;--> statement-breakpoint
ALTER TABLE `payments` ADD `permit2612_deadline` text;--> statement-breakpoint
ALTER TABLE `payments` ADD `permit2612_signature` text;