-- Jobs were called errands. The tables are written anew, so that their constraints have the new name too.
CREATE TABLE `jobs` (
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
	CONSTRAINT "jobs_kind" CHECK("jobs"."kind" IN ('swap', 'refund', 'grant', 'allowance')),
	CONSTRAINT "jobs_product" CHECK("jobs"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "jobs_network" CHECK("jobs"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "jobs_nonce" CHECK("jobs"."nonce" >= 0),
	CONSTRAINT "jobs_addresses" CHECK(length("jobs"."relayer") = 42 AND "jobs"."relayer" GLOB '0x*' AND substr("jobs"."relayer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("jobs"."to") = 42 AND "jobs"."to" GLOB '0x*' AND substr("jobs"."to", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "jobs_value" CHECK(typeof("jobs"."value_wei") = 'text' AND "jobs"."value_wei" <> '' AND "jobs"."value_wei" NOT GLOB '*[^0-9]*' AND ("jobs"."value_wei" = '0' OR "jobs"."value_wei" NOT GLOB '0*')),
	CONSTRAINT "jobs_state" CHECK("jobs"."state" IN ('broadcast', 'confirmed', 'failed', 'replaced')),
	CONSTRAINT "jobs_transaction" CHECK(length("jobs"."transaction_hash") = 66 AND "jobs"."transaction_hash" GLOB '0x*' AND substr("jobs"."transaction_hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "jobs_included" CHECK(("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."block_number" IS NOT NULL) AND ("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."receipt" IS NOT NULL)),
	CONSTRAINT "jobs_ended" CHECK(("jobs"."state" = 'broadcast') = ("jobs"."ended_at" IS NULL)),
	CONSTRAINT "jobs_receipt" CHECK("jobs"."receipt" IS NULL OR json_valid("jobs"."receipt"))
);
--> statement-breakpoint
INSERT INTO `jobs` (`id`, `kind`, `product`, `network`, `relayer`, `nonce`, `to`, `value_wei`, `state`, `transaction_hash`, `block_number`, `receipt`, `created_at`, `ended_at`)
SELECT `id`, `kind`, `product`, `network`, `relayer`, `nonce`, `to`, `value_wei`, `state`, `transaction_hash`, `block_number`, `receipt`, `created_at`, `ended_at` FROM `errands` ORDER BY rowid;
--> statement-breakpoint
CREATE TABLE `job_transactions` (
	`job_id` text NOT NULL,
	`transaction_hash` text PRIMARY KEY NOT NULL,
	FOREIGN KEY (`job_id`) REFERENCES `jobs`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`transaction_hash`) REFERENCES `transactions`(`hash`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
INSERT INTO `job_transactions` (`job_id`, `transaction_hash`)
SELECT `errand_id`, `transaction_hash` FROM `errand_transactions` ORDER BY rowid;
--> statement-breakpoint
DROP TABLE `errand_transactions`;
--> statement-breakpoint
DROP TABLE `errands`;
--> statement-breakpoint
CREATE INDEX `jobs_unfinished` ON `jobs` (`state`) WHERE state = 'broadcast';
--> statement-breakpoint
CREATE INDEX `job_transactions_job` ON `job_transactions` (`job_id`);
