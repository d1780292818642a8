CREATE TABLE `answers` (
	`payment_id` text PRIMARY KEY NOT NULL,
	`status` integer NOT NULL,
	`headers` text NOT NULL,
	`body` blob NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "answers_status" CHECK("answers"."status" BETWEEN 200 AND 599),
	CONSTRAINT "answers_headers" CHECK(json_valid("answers"."headers")),
	CONSTRAINT "answers_times" CHECK("answers"."expires_at" > "answers"."created_at")
);
--> statement-breakpoint
CREATE INDEX `answers_expiry` ON `answers` (`expires_at`);--> statement-breakpoint
CREATE TABLE `gas_spent` (
	`network` text NOT NULL,
	`product` text NOT NULL,
	`day` text NOT NULL,
	`wei` text NOT NULL,
	PRIMARY KEY(`network`, `product`, `day`),
	CONSTRAINT "gas_spent_product" CHECK("gas_spent"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "gas_spent_day" CHECK("gas_spent"."day" GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'),
	CONSTRAINT "gas_spent_wei" CHECK(typeof("gas_spent"."wei") = 'text' AND "gas_spent"."wei" <> '' AND "gas_spent"."wei" NOT GLOB '*[^0-9]*' AND ("gas_spent"."wei" = '0' OR "gas_spent"."wei" NOT GLOB '0*'))
);
--> statement-breakpoint
CREATE TABLE `merchants` (
	`slug` text PRIMARY KEY NOT NULL,
	`title` text NOT NULL,
	`hash` text NOT NULL,
	`json` text NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `meta` (
	`key` text PRIMARY KEY NOT NULL,
	`value` text NOT NULL
);
--> statement-breakpoint
CREATE TABLE `payments` (
	`id` text PRIMARY KEY NOT NULL,
	`method` text NOT NULL,
	`network` text NOT NULL,
	`chain_id` integer NOT NULL,
	`asset` text COLLATE NOCASE NOT NULL,
	`payer` text COLLATE NOCASE NOT NULL,
	`payee` text COLLATE NOCASE NOT NULL,
	`amount_atomic` text NOT NULL,
	`nonce` text NOT NULL,
	`valid_after` text NOT NULL,
	`valid_before` text NOT NULL,
	`signature` text NOT NULL,
	`product` text NOT NULL,
	`protocol` text NOT NULL,
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`fingerprint` text NOT NULL,
	`resource` text NOT NULL,
	`idempotency_key` text,
	`challenge_id` text,
	`bound` integer NOT NULL,
	`received_at` integer NOT NULL,
	`known_block` integer NOT NULL,
	`state` text NOT NULL,
	`transaction_hash` text NOT NULL,
	`log_index` integer,
	`block_number` integer,
	`delivery` text DEFAULT 'none' NOT NULL,
	`attempts` integer DEFAULT 0 NOT NULL,
	`upstream_status` integer,
	`truncated` integer DEFAULT false NOT NULL,
	`answered` integer DEFAULT false NOT NULL,
	`redeem_token_hash` text,
	`redeem_until` integer,
	`created_at` integer NOT NULL,
	`confirmed_at` integer,
	`delivered_at` integer,
	CONSTRAINT "payments_method" CHECK("payments"."method" IN ('eip3009', 'permit2')),
	CONSTRAINT "payments_network" CHECK("payments"."network" = 'eip155:' || "payments"."chain_id" AND "payments"."chain_id" > 0),
	CONSTRAINT "payments_addresses" CHECK(length("payments"."asset") = 42 AND "payments"."asset" GLOB '0x*' AND substr("payments"."asset", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("payments"."payer") = 42 AND "payments"."payer" GLOB '0x*' AND substr("payments"."payer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("payments"."payee") = 42 AND "payments"."payee" GLOB '0x*' AND substr("payments"."payee", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "payments_amount" CHECK(typeof("payments"."amount_atomic") = 'text' AND "payments"."amount_atomic" <> '' AND "payments"."amount_atomic" NOT GLOB '*[^0-9]*' AND ("payments"."amount_atomic" = '0' OR "payments"."amount_atomic" NOT GLOB '0*') AND "payments"."amount_atomic" <> '0'),
	CONSTRAINT "payments_nonce" CHECK(length("payments"."nonce") = 66 AND "payments"."nonce" GLOB '0x*' AND substr("payments"."nonce", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "payments_window" CHECK(typeof("payments"."valid_after") = 'text' AND "payments"."valid_after" <> '' AND "payments"."valid_after" NOT GLOB '*[^0-9]*' AND ("payments"."valid_after" = '0' OR "payments"."valid_after" NOT GLOB '0*') AND typeof("payments"."valid_before") = 'text' AND "payments"."valid_before" <> '' AND "payments"."valid_before" NOT GLOB '*[^0-9]*' AND ("payments"."valid_before" = '0' OR "payments"."valid_before" NOT GLOB '0*')),
	CONSTRAINT "payments_product" CHECK("payments"."product" IN ('gateway', 'facilitator', 'desk')),
	CONSTRAINT "payments_protocol" CHECK("payments"."protocol" IN ('mpp', 'x402')),
	CONSTRAINT "payments_state" CHECK("payments"."state" IN ('broadcast', 'confirmed', 'reverted', 'expired')),
	CONSTRAINT "payments_transaction" CHECK(length("payments"."transaction_hash") = 66 AND "payments"."transaction_hash" GLOB '0x*' AND substr("payments"."transaction_hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "payments_confirmed" CHECK(("payments"."state" = 'confirmed') = ("payments"."log_index" IS NOT NULL) AND ("payments"."state" = 'confirmed') = ("payments"."block_number" IS NOT NULL) AND ("payments"."state" = 'confirmed') = ("payments"."confirmed_at" IS NOT NULL)),
	CONSTRAINT "payments_delivery" CHECK("payments"."delivery" IN ('none', 'delivering', 'delivered')),
	CONSTRAINT "payments_attempts" CHECK("payments"."attempts" >= 0 AND ("payments"."delivery" = 'none' OR "payments"."attempts" > 0)),
	CONSTRAINT "payments_delivered" CHECK(("payments"."delivery" = 'delivered') = ("payments"."delivered_at" IS NOT NULL)),
	CONSTRAINT "payments_redeemable" CHECK(("payments"."redeem_token_hash" IS NULL) = ("payments"."redeem_until" IS NULL)),
	CONSTRAINT "payments_flags" CHECK("payments"."bound" IN (0, 1) AND "payments"."truncated" IN (0, 1) AND "payments"."answered" IN (0, 1))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `payments_redeem` ON `payments` (`redeem_token_hash`);--> statement-breakpoint
CREATE INDEX `payments_unfinished` ON `payments` (`state`) WHERE state IN ('broadcast', 'reverted');--> statement-breakpoint
CREATE INDEX `payments_idempotency` ON `payments` (`merchant`,`route`,`payer`,`idempotency_key`) WHERE idempotency_key IS NOT NULL;--> statement-breakpoint
CREATE INDEX `payments_payer` ON `payments` (`payer`,`created_at`);--> statement-breakpoint
CREATE INDEX `payments_block` ON `payments` (`network`,`block_number`);--> statement-breakpoint
CREATE UNIQUE INDEX `payments_money` ON `payments` (`network`,`asset`,`payer`,`nonce`);--> statement-breakpoint
CREATE UNIQUE INDEX `payments_log` ON `payments` (`network`,`transaction_hash`,`log_index`);--> statement-breakpoint
CREATE TABLE `transaction_members` (
	`transaction_hash` text NOT NULL,
	`position` integer NOT NULL,
	`payment_id` text NOT NULL,
	PRIMARY KEY(`transaction_hash`, `position`),
	FOREIGN KEY (`transaction_hash`) REFERENCES `transactions`(`hash`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "transaction_members_position" CHECK("transaction_members"."position" >= 0)
);
--> statement-breakpoint
CREATE INDEX `transaction_members_payment` ON `transaction_members` (`payment_id`);--> statement-breakpoint
CREATE UNIQUE INDEX `transaction_members_once` ON `transaction_members` (`transaction_hash`,`payment_id`);--> statement-breakpoint
CREATE TABLE `transactions` (
	`hash` text PRIMARY KEY NOT NULL,
	`network` text NOT NULL,
	`relayer` text COLLATE NOCASE NOT NULL,
	`nonce` integer NOT NULL,
	`kind` text NOT NULL,
	`product` text NOT NULL,
	`to` text COLLATE NOCASE NOT NULL,
	`raw` text NOT NULL,
	`gas_limit` text NOT NULL,
	`max_fee_wei` text NOT NULL,
	`max_tip_wei` text NOT NULL,
	`state` text NOT NULL,
	`created_at` integer NOT NULL,
	`first_sent_at` integer,
	`block_number` integer,
	CONSTRAINT "transactions_hash" CHECK(length("transactions"."hash") = 66 AND "transactions"."hash" GLOB '0x*' AND substr("transactions"."hash", 3) NOT GLOB '*[^0-9a-f]*'),
	CONSTRAINT "transactions_network" CHECK("transactions"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "transactions_nonce_range" CHECK("transactions"."nonce" >= 0),
	CONSTRAINT "transactions_kind" CHECK("transactions"."kind" IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'cancel')),
	CONSTRAINT "transactions_product" CHECK("transactions"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "transactions_addresses" CHECK(length("transactions"."relayer") = 42 AND "transactions"."relayer" GLOB '0x*' AND substr("transactions"."relayer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("transactions"."to") = 42 AND "transactions"."to" GLOB '0x*' AND substr("transactions"."to", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "transactions_raw" CHECK("transactions"."raw" GLOB '0x02*'),
	CONSTRAINT "transactions_fees" CHECK(typeof("transactions"."gas_limit") = 'text' AND "transactions"."gas_limit" <> '' AND "transactions"."gas_limit" NOT GLOB '*[^0-9]*' AND ("transactions"."gas_limit" = '0' OR "transactions"."gas_limit" NOT GLOB '0*') AND typeof("transactions"."max_fee_wei") = 'text' AND "transactions"."max_fee_wei" <> '' AND "transactions"."max_fee_wei" NOT GLOB '*[^0-9]*' AND ("transactions"."max_fee_wei" = '0' OR "transactions"."max_fee_wei" NOT GLOB '0*') AND typeof("transactions"."max_tip_wei") = 'text' AND "transactions"."max_tip_wei" <> '' AND "transactions"."max_tip_wei" NOT GLOB '*[^0-9]*' AND ("transactions"."max_tip_wei" = '0' OR "transactions"."max_tip_wei" NOT GLOB '0*')),
	CONSTRAINT "transactions_state" CHECK("transactions"."state" IN ('signed', 'sent', 'mined', 'failed', 'replaced')),
	CONSTRAINT "transactions_included_block" CHECK(("transactions"."state" IN ('mined', 'failed')) = ("transactions"."block_number" IS NOT NULL)),
	CONSTRAINT "transactions_sent" CHECK("transactions"."state" NOT IN ('sent', 'mined', 'failed') OR "transactions"."first_sent_at" IS NOT NULL),
	CONSTRAINT "transactions_signed" CHECK("transactions"."state" <> 'signed' OR "transactions"."first_sent_at" IS NULL)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `transactions_included` ON `transactions` (`network`,`relayer`,`nonce`) WHERE state IN ('mined', 'failed');--> statement-breakpoint
CREATE INDEX `transactions_nonce` ON `transactions` (`network`,`relayer`,`nonce`);--> statement-breakpoint
CREATE INDEX `transactions_block` ON `transactions` (`network`,`block_number`);--> statement-breakpoint
CREATE INDEX `transactions_unfinished` ON `transactions` (`state`) WHERE state IN ('signed', 'sent');