-- The first schema. drizzle-kit wrote the tables and indexes from the files of db/. Written by hand are
-- `WITHOUT ROWID` of tables whose short rows are in the index of their key, and the triggers
-- at the end.
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
CREATE INDEX `answers_expiry` ON `answers` (`expires_at`);
CREATE TABLE `gas_spent` (
	`network` text NOT NULL,
	`product` text NOT NULL,
	`day` text NOT NULL,
	`wei` text NOT NULL,
	`wasted_wei` text DEFAULT '0' NOT NULL,
	PRIMARY KEY(`network`, `product`, `day`),
	CONSTRAINT "gas_spent_product" CHECK("gas_spent"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')),
	CONSTRAINT "gas_spent_day" CHECK("gas_spent"."day" GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'),
	CONSTRAINT "gas_spent_wei" CHECK(typeof("gas_spent"."wei") = 'text' AND "gas_spent"."wei" <> '' AND "gas_spent"."wei" NOT GLOB '*[^0-9]*' AND ("gas_spent"."wei" = '0' OR "gas_spent"."wei" NOT GLOB '0*')),
	CONSTRAINT "gas_spent_wasted_wei" CHECK(typeof("gas_spent"."wasted_wei") = 'text' AND "gas_spent"."wasted_wei" <> '' AND "gas_spent"."wasted_wei" NOT GLOB '*[^0-9]*' AND ("gas_spent"."wasted_wei" = '0' OR "gas_spent"."wasted_wei" NOT GLOB '0*'))
);
CREATE TABLE `merchants` (
	`slug` text PRIMARY KEY NOT NULL,
	`title` text NOT NULL,
	`hash` text NOT NULL,
	`json` text NOT NULL,
	`updated_at` integer NOT NULL
);
CREATE TABLE `meta` (
	`key` text PRIMARY KEY NOT NULL,
	`value` text NOT NULL
);
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
	`credential_hash` text,
	`client` text,
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
	`permit2612_value` text,
	`permit2612_deadline` text,
	`permit2612_signature` text,
	`ceiling_atomic` text,
	`facilitator` text COLLATE NOCASE,
	`nonce_used` integer DEFAULT false NOT NULL,
	`created_at` integer NOT NULL,
	`confirmed_at` integer,
	`delivered_at` integer,
	CONSTRAINT "payments_method" CHECK("payments"."method" IN ('eip3009', 'permit2', 'channel')),
	CONSTRAINT "payments_network" CHECK("payments"."network" = 'eip155:' || "payments"."chain_id" AND "payments"."chain_id" > 0),
	CONSTRAINT "payments_addresses" CHECK(length(unhex(substr("payments"."asset", 3))) IS 20 AND "payments"."asset" GLOB '0x*' AND length(unhex(substr("payments"."payer", 3))) IS 20 AND "payments"."payer" GLOB '0x*' AND length(unhex(substr("payments"."payee", 3))) IS 20 AND "payments"."payee" GLOB '0x*'),
	CONSTRAINT "payments_amount" CHECK(typeof("payments"."amount_atomic") = 'text' AND "payments"."amount_atomic" <> '' AND "payments"."amount_atomic" NOT GLOB '*[^0-9]*' AND ("payments"."amount_atomic" = '0' OR "payments"."amount_atomic" NOT GLOB '0*') AND "payments"."amount_atomic" <> '0'),
	CONSTRAINT "payments_nonce" CHECK(length(unhex(substr("payments"."nonce", 3))) IS 32 AND "payments"."nonce" GLOB '0x*' AND "payments"."nonce" = lower("payments"."nonce")),
	CONSTRAINT "payments_window" CHECK(typeof("payments"."valid_after") = 'text' AND "payments"."valid_after" <> '' AND "payments"."valid_after" NOT GLOB '*[^0-9]*' AND ("payments"."valid_after" = '0' OR "payments"."valid_after" NOT GLOB '0*') AND typeof("payments"."valid_before") = 'text' AND "payments"."valid_before" <> '' AND "payments"."valid_before" NOT GLOB '*[^0-9]*' AND ("payments"."valid_before" = '0' OR "payments"."valid_before" NOT GLOB '0*')),
	CONSTRAINT "payments_product" CHECK("payments"."product" IN ('gateway', 'facilitator', 'desk')),
	CONSTRAINT "payments_protocol" CHECK("payments"."protocol" IN ('mpp', 'x402')),
	CONSTRAINT "payments_state" CHECK("payments"."state" IN ('broadcast', 'confirmed', 'reverted', 'expired')),
	CONSTRAINT "payments_transaction" CHECK(length(unhex(substr("payments"."transaction_hash", 3))) IS 32 AND "payments"."transaction_hash" GLOB '0x*' AND "payments"."transaction_hash" = lower("payments"."transaction_hash")),
	CONSTRAINT "payments_confirmed" CHECK(("payments"."state" = 'confirmed' AND "payments"."method" <> 'channel') = ("payments"."log_index" IS NOT NULL) AND ("payments"."log_index" IS NULL) = ("payments"."block_number" IS NULL) AND ("payments"."state" = 'confirmed') = ("payments"."confirmed_at" IS NOT NULL)),
	CONSTRAINT "payments_channel" CHECK("payments"."method" <> 'channel' OR ("payments"."state" = 'confirmed' AND "payments"."product" = 'gateway' AND "payments"."protocol" = 'x402')),
	CONSTRAINT "payments_delivery" CHECK("payments"."delivery" IN ('none', 'delivering', 'delivered')),
	CONSTRAINT "payments_attempts" CHECK("payments"."attempts" >= 0 AND ("payments"."delivery" = 'none' OR "payments"."attempts" > 0)),
	CONSTRAINT "payments_delivered" CHECK(("payments"."delivery" = 'delivered') = ("payments"."delivered_at" IS NOT NULL)),
	CONSTRAINT "payments_redeemable" CHECK(("payments"."redeem_token_hash" IS NULL) = ("payments"."redeem_until" IS NULL)),
	CONSTRAINT "payments_credential" CHECK("payments"."credential_hash" IS NULL OR ("payments"."protocol" = 'x402' AND length(unhex("payments"."credential_hash")) IS 32 AND "payments"."credential_hash" = lower("payments"."credential_hash"))),
	CONSTRAINT "payments_ceiling" CHECK("payments"."ceiling_atomic" IS NULL OR (typeof("payments"."ceiling_atomic") = 'text' AND "payments"."ceiling_atomic" <> '' AND "payments"."ceiling_atomic" NOT GLOB '*[^0-9]*' AND ("payments"."ceiling_atomic" = '0' OR "payments"."ceiling_atomic" NOT GLOB '0*') AND "payments"."ceiling_atomic" <> '0' AND "payments"."method" = 'permit2' AND "payments"."protocol" = 'x402' AND (length("payments"."amount_atomic") < length("payments"."ceiling_atomic") OR (length("payments"."amount_atomic") = length("payments"."ceiling_atomic") AND "payments"."amount_atomic" <= "payments"."ceiling_atomic")))),
	CONSTRAINT "payments_facilitator" CHECK(("payments"."facilitator" IS NULL) = ("payments"."ceiling_atomic" IS NULL) AND ("payments"."facilitator" IS NULL OR (length(unhex(substr("payments"."facilitator", 3))) IS 20 AND "payments"."facilitator" GLOB '0x*'))),
	CONSTRAINT "payments_flags" CHECK("payments"."bound" IN (0, 1) AND "payments"."truncated" IN (0, 1) AND "payments"."answered" IN (0, 1))
);
CREATE UNIQUE INDEX `payments_log` ON `payments` (`network`,`transaction_hash`,`log_index`) WHERE log_index IS NOT NULL;
CREATE UNIQUE INDEX `payments_redeem` ON `payments` (`redeem_token_hash`) WHERE redeem_token_hash IS NOT NULL;
CREATE INDEX `payments_redeemable` ON `payments` (`redeem_until`) WHERE redeem_until IS NOT NULL;
CREATE INDEX `payments_unfinished` ON `payments` (`state`) WHERE state IN ('broadcast', 'reverted');
CREATE INDEX `payments_idempotency` ON `payments` (`merchant`,`route`,`payer`,`idempotency_key`) WHERE idempotency_key IS NOT NULL;
CREATE INDEX `payments_block` ON `payments` (`network`,`block_number`) WHERE block_number IS NOT NULL;
CREATE UNIQUE INDEX `payments_money` ON `payments` (`network`,`asset`,`payer`,`nonce`);
CREATE TABLE `requests` (
	`day` integer NOT NULL,
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`client` text NOT NULL,
	`step` text NOT NULL,
	`detail` text NOT NULL,
	`times` integer NOT NULL,
	PRIMARY KEY(`day`, `merchant`, `route`, `client`, `step`, `detail`),
	CONSTRAINT "requests_day" CHECK("requests"."day" >= 0 AND "requests"."day" % 86400000 = 0),
	CONSTRAINT "requests_step" CHECK("requests"."step" IN ('asked', 'tried', 'refused', 'paid', 'free')),
	CONSTRAINT "requests_detail" CHECK(("requests"."detail" = '') = ("requests"."step" IN ('asked', 'paid'))),
	CONSTRAINT "requests_times" CHECK("requests"."times" >= 0)
) WITHOUT ROWID;
CREATE TABLE `transaction_members` (
	`transaction_hash` text NOT NULL,
	`position` integer NOT NULL,
	`payment_id` text NOT NULL,
	PRIMARY KEY(`transaction_hash`, `position`),
	FOREIGN KEY (`transaction_hash`) REFERENCES `transactions`(`hash`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "transaction_members_position" CHECK("transaction_members"."position" >= 0)
) WITHOUT ROWID;
CREATE INDEX `transaction_members_payment` ON `transaction_members` (`payment_id`);
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
	`cost_wei` text,
	CONSTRAINT "transactions_hash" CHECK(length(unhex(substr("transactions"."hash", 3))) IS 32 AND "transactions"."hash" GLOB '0x*' AND "transactions"."hash" = lower("transactions"."hash")),
	CONSTRAINT "transactions_network" CHECK("transactions"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "transactions_nonce_range" CHECK("transactions"."nonce" >= 0),
	CONSTRAINT "transactions_kind" CHECK("transactions"."kind" IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'channel', 'cancel')),
	CONSTRAINT "transactions_product" CHECK("transactions"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')),
	CONSTRAINT "transactions_addresses" CHECK(length(unhex(substr("transactions"."relayer", 3))) IS 20 AND "transactions"."relayer" GLOB '0x*' AND length(unhex(substr("transactions"."to", 3))) IS 20 AND "transactions"."to" GLOB '0x*'),
	CONSTRAINT "transactions_raw" CHECK("transactions"."raw" GLOB '0x02*'),
	CONSTRAINT "transactions_fees" CHECK(typeof("transactions"."gas_limit") = 'text' AND "transactions"."gas_limit" <> '' AND "transactions"."gas_limit" NOT GLOB '*[^0-9]*' AND ("transactions"."gas_limit" = '0' OR "transactions"."gas_limit" NOT GLOB '0*') AND typeof("transactions"."max_fee_wei") = 'text' AND "transactions"."max_fee_wei" <> '' AND "transactions"."max_fee_wei" NOT GLOB '*[^0-9]*' AND ("transactions"."max_fee_wei" = '0' OR "transactions"."max_fee_wei" NOT GLOB '0*') AND typeof("transactions"."max_tip_wei") = 'text' AND "transactions"."max_tip_wei" <> '' AND "transactions"."max_tip_wei" NOT GLOB '*[^0-9]*' AND ("transactions"."max_tip_wei" = '0' OR "transactions"."max_tip_wei" NOT GLOB '0*')),
	CONSTRAINT "transactions_state" CHECK("transactions"."state" IN ('signed', 'sent', 'mined', 'failed', 'replaced')),
	CONSTRAINT "transactions_included_block" CHECK(("transactions"."state" IN ('mined', 'failed')) = ("transactions"."block_number" IS NOT NULL)),
	CONSTRAINT "transactions_sent" CHECK("transactions"."state" NOT IN ('sent', 'mined', 'failed') OR "transactions"."first_sent_at" IS NOT NULL),
	CONSTRAINT "transactions_cost" CHECK("transactions"."cost_wei" IS NULL OR (typeof("transactions"."cost_wei") = 'text' AND "transactions"."cost_wei" <> '' AND "transactions"."cost_wei" NOT GLOB '*[^0-9]*' AND ("transactions"."cost_wei" = '0' OR "transactions"."cost_wei" NOT GLOB '0*') AND "transactions"."state" IN ('mined', 'failed'))),
	CONSTRAINT "transactions_signed" CHECK("transactions"."state" <> 'signed' OR "transactions"."first_sent_at" IS NULL)
);
CREATE UNIQUE INDEX `transactions_included` ON `transactions` (`network`,`relayer`,`nonce`) WHERE state IN ('mined', 'failed');
CREATE INDEX `transactions_block` ON `transactions` (`network`,`block_number`) WHERE block_number IS NOT NULL;
CREATE INDEX `transactions_unfinished` ON `transactions` (`state`) WHERE state IN ('signed', 'sent');
CREATE INDEX `transactions_unpaid` ON `transactions` (`created_at`) WHERE kind NOT IN ('payment', 'batch');
CREATE TABLE `authorizations` (
	`id` text PRIMARY KEY NOT NULL,
	`network` text NOT NULL,
	`chain_id` integer NOT NULL,
	`asset` text COLLATE NOCASE NOT NULL,
	`payer` text COLLATE NOCASE NOT NULL,
	`payee` text COLLATE NOCASE NOT NULL,
	`ceiling_atomic` text NOT NULL,
	`facilitator` text COLLATE NOCASE NOT NULL,
	`nonce` text NOT NULL,
	`valid_after` text NOT NULL,
	`valid_before` text NOT NULL,
	`signature` text NOT NULL,
	`permit2612_value` text,
	`permit2612_deadline` text,
	`permit2612_signature` text,
	`product` text NOT NULL,
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`fingerprint` text NOT NULL,
	`resource` text NOT NULL,
	`idempotency_key` text,
	`credential_hash` text,
	`client` text,
	`bound` integer NOT NULL,
	`received_at` integer NOT NULL,
	`known_block` integer NOT NULL,
	`state` text NOT NULL,
	`charge_atomic` text,
	`units` text,
	`is_delivered` integer DEFAULT false NOT NULL,
	`upstream_status` integer,
	`truncated` integer DEFAULT false NOT NULL,
	`failed_at` integer,
	`created_at` integer NOT NULL,
	CONSTRAINT "authorizations_network" CHECK("authorizations"."network" = 'eip155:' || "authorizations"."chain_id" AND "authorizations"."chain_id" > 0),
	CONSTRAINT "authorizations_addresses" CHECK(length(unhex(substr("authorizations"."asset", 3))) IS 20 AND "authorizations"."asset" GLOB '0x*' AND length(unhex(substr("authorizations"."payer", 3))) IS 20 AND "authorizations"."payer" GLOB '0x*' AND length(unhex(substr("authorizations"."payee", 3))) IS 20 AND "authorizations"."payee" GLOB '0x*' AND length(unhex(substr("authorizations"."facilitator", 3))) IS 20 AND "authorizations"."facilitator" GLOB '0x*'),
	CONSTRAINT "authorizations_ceiling" CHECK(typeof("authorizations"."ceiling_atomic") = 'text' AND "authorizations"."ceiling_atomic" <> '' AND "authorizations"."ceiling_atomic" NOT GLOB '*[^0-9]*' AND ("authorizations"."ceiling_atomic" = '0' OR "authorizations"."ceiling_atomic" NOT GLOB '0*') AND "authorizations"."ceiling_atomic" <> '0'),
	CONSTRAINT "authorizations_nonce" CHECK(length(unhex(substr("authorizations"."nonce", 3))) IS 32 AND "authorizations"."nonce" GLOB '0x*' AND "authorizations"."nonce" = lower("authorizations"."nonce")),
	CONSTRAINT "authorizations_window" CHECK(typeof("authorizations"."valid_after") = 'text' AND "authorizations"."valid_after" <> '' AND "authorizations"."valid_after" NOT GLOB '*[^0-9]*' AND ("authorizations"."valid_after" = '0' OR "authorizations"."valid_after" NOT GLOB '0*') AND typeof("authorizations"."valid_before") = 'text' AND "authorizations"."valid_before" <> '' AND "authorizations"."valid_before" NOT GLOB '*[^0-9]*' AND ("authorizations"."valid_before" = '0' OR "authorizations"."valid_before" NOT GLOB '0*')),
	CONSTRAINT "authorizations_product" CHECK("authorizations"."product" IN ('gateway', 'facilitator')),
	CONSTRAINT "authorizations_state" CHECK("authorizations"."state" IN ('authorized', 'metered', 'sent', 'void', 'failed')),
	CONSTRAINT "authorizations_charge" CHECK(("authorizations"."charge_atomic" IS NULL) = ("authorizations"."state" = 'authorized') AND ("authorizations"."charge_atomic" IS NULL OR (typeof("authorizations"."charge_atomic") = 'text' AND "authorizations"."charge_atomic" <> '' AND "authorizations"."charge_atomic" NOT GLOB '*[^0-9]*' AND ("authorizations"."charge_atomic" = '0' OR "authorizations"."charge_atomic" NOT GLOB '0*')))),
	CONSTRAINT "authorizations_void" CHECK("authorizations"."charge_atomic" IS NULL OR ("authorizations"."charge_atomic" = '0') = ("authorizations"."state" = 'void')),
	CONSTRAINT "authorizations_most" CHECK("authorizations"."charge_atomic" IS NULL OR length("authorizations"."charge_atomic") < length("authorizations"."ceiling_atomic") OR (length("authorizations"."charge_atomic") = length("authorizations"."ceiling_atomic") AND "authorizations"."charge_atomic" <= "authorizations"."ceiling_atomic")),
	CONSTRAINT "authorizations_units" CHECK(("authorizations"."units" IS NULL) = ("authorizations"."charge_atomic" IS NULL) AND ("authorizations"."units" IS NULL OR json_valid("authorizations"."units"))),
	CONSTRAINT "authorizations_delivered" CHECK("authorizations"."is_delivered" = ("authorizations"."upstream_status" IS NOT NULL) AND ("authorizations"."is_delivered" = 0 OR "authorizations"."state" <> 'authorized')),
	CONSTRAINT "authorizations_flags" CHECK("authorizations"."bound" IN (0, 1) AND "authorizations"."truncated" IN (0, 1) AND "authorizations"."is_delivered" IN (0, 1))
);
CREATE INDEX `authorizations_open` ON `authorizations` (`state`) WHERE state IN ('authorized', 'metered');
CREATE INDEX `authorizations_failed` ON `authorizations` (`payer`,`failed_at`) WHERE failed_at IS NOT NULL;
CREATE INDEX `authorizations_idempotency` ON `authorizations` (`merchant`,`route`,`payer`,`idempotency_key`) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX `authorizations_money` ON `authorizations` (`network`,`asset`,`payer`,`nonce`);
CREATE TABLE `job_transactions` (
	`job_id` text NOT NULL,
	`transaction_hash` text PRIMARY KEY NOT NULL,
	FOREIGN KEY (`job_id`) REFERENCES `jobs`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`transaction_hash`) REFERENCES `transactions`(`hash`) ON UPDATE no action ON DELETE no action
);
CREATE INDEX `job_transactions_job` ON `job_transactions` (`job_id`);
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
	CONSTRAINT "jobs_kind" CHECK("jobs"."kind" IN ('swap', 'refund', 'grant', 'allowance', 'channel')),
	CONSTRAINT "jobs_product" CHECK("jobs"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')),
	CONSTRAINT "jobs_network" CHECK("jobs"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "jobs_nonce" CHECK("jobs"."nonce" >= 0),
	CONSTRAINT "jobs_addresses" CHECK(length(unhex(substr("jobs"."relayer", 3))) IS 20 AND "jobs"."relayer" GLOB '0x*' AND length(unhex(substr("jobs"."to", 3))) IS 20 AND "jobs"."to" GLOB '0x*'),
	CONSTRAINT "jobs_value" CHECK(typeof("jobs"."value_wei") = 'text' AND "jobs"."value_wei" <> '' AND "jobs"."value_wei" NOT GLOB '*[^0-9]*' AND ("jobs"."value_wei" = '0' OR "jobs"."value_wei" NOT GLOB '0*')),
	CONSTRAINT "jobs_state" CHECK("jobs"."state" IN ('broadcast', 'confirmed', 'failed', 'replaced')),
	CONSTRAINT "jobs_transaction" CHECK(length(unhex(substr("jobs"."transaction_hash", 3))) IS 32 AND "jobs"."transaction_hash" GLOB '0x*' AND "jobs"."transaction_hash" = lower("jobs"."transaction_hash")),
	CONSTRAINT "jobs_included" CHECK(("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."block_number" IS NOT NULL) AND ("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."receipt" IS NOT NULL)),
	CONSTRAINT "jobs_ended" CHECK(("jobs"."state" = 'broadcast') = ("jobs"."ended_at" IS NULL)),
	CONSTRAINT "jobs_receipt" CHECK("jobs"."receipt" IS NULL OR json_valid("jobs"."receipt"))
);
CREATE INDEX `jobs_unfinished` ON `jobs` (`state`) WHERE state = 'broadcast';
CREATE TABLE `offers` (
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`network` text NOT NULL,
	`asset` text COLLATE NOCASE NOT NULL,
	`pay_to` text COLLATE NOCASE NOT NULL,
	`amount_atomic` text NOT NULL,
	`retired_at` integer NOT NULL,
	PRIMARY KEY(`merchant`, `route`, `network`, `asset`, `pay_to`, `amount_atomic`),
	CONSTRAINT "offers_addresses" CHECK(length(unhex(substr("offers"."asset", 3))) IS 20 AND "offers"."asset" GLOB '0x*'),
	CONSTRAINT "offers_payee" CHECK(length(unhex(substr("offers"."pay_to", 3))) IS 20 AND "offers"."pay_to" GLOB '0x*'),
	CONSTRAINT "offers_amount" CHECK(typeof("offers"."amount_atomic") = 'text' AND "offers"."amount_atomic" <> '' AND "offers"."amount_atomic" NOT GLOB '*[^0-9]*' AND ("offers"."amount_atomic" = '0' OR "offers"."amount_atomic" NOT GLOB '0*'))
);
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
	`returned_atomic` text,
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
	CONSTRAINT "orders_addresses" CHECK(length(unhex(substr("orders"."token", 3))) IS 20 AND "orders"."token" GLOB '0x*' AND length(unhex(substr("orders"."pool", 3))) IS 20 AND "orders"."pool" GLOB '0x*' AND length(unhex(substr("orders"."payer", 3))) IS 20 AND "orders"."payer" GLOB '0x*' AND length(unhex(substr("orders"."recipient", 3))) IS 20 AND "orders"."recipient" GLOB '0x*'),
	CONSTRAINT "orders_amounts" CHECK(typeof("orders"."usdg_atomic") = 'text' AND "orders"."usdg_atomic" <> '' AND "orders"."usdg_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."usdg_atomic" = '0' OR "orders"."usdg_atomic" NOT GLOB '0*') AND "orders"."usdg_atomic" <> '0' AND typeof("orders"."total_atomic") = 'text' AND "orders"."total_atomic" <> '' AND "orders"."total_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."total_atomic" = '0' OR "orders"."total_atomic" NOT GLOB '0*') AND "orders"."total_atomic" <> '0' AND typeof("orders"."quoted_atomic") = 'text' AND "orders"."quoted_atomic" <> '' AND "orders"."quoted_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."quoted_atomic" = '0' OR "orders"."quoted_atomic" NOT GLOB '0*') AND typeof("orders"."floor_atomic") = 'text' AND "orders"."floor_atomic" <> '' AND "orders"."floor_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."floor_atomic" = '0' OR "orders"."floor_atomic" NOT GLOB '0*') AND "orders"."floor_atomic" <> '0'),
	CONSTRAINT "orders_state" CHECK("orders"."state" IN ('settling', 'settled', 'swapping', 'delivered', 'refunding', 'refunded', 'held', 'failed')),
	CONSTRAINT "orders_settlement" CHECK(length(unhex(substr("orders"."settlement_tx", 3))) IS 32 AND "orders"."settlement_tx" GLOB '0x*' AND "orders"."settlement_tx" = lower("orders"."settlement_tx")),
	CONSTRAINT "orders_swap" CHECK("orders"."swap_tx" IS NULL OR length(unhex(substr("orders"."swap_tx", 3))) IS 32 AND "orders"."swap_tx" GLOB '0x*' AND "orders"."swap_tx" = lower("orders"."swap_tx")),
	CONSTRAINT "orders_refund" CHECK("orders"."refund_tx" IS NULL OR length(unhex(substr("orders"."refund_tx", 3))) IS 32 AND "orders"."refund_tx" GLOB '0x*' AND "orders"."refund_tx" = lower("orders"."refund_tx")),
	CONSTRAINT "orders_unsent" CHECK("orders"."state" NOT IN ('settling', 'settled', 'failed') OR ("orders"."swap_tx" IS NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_swapped" CHECK("orders"."state" NOT IN ('swapping', 'delivered') OR ("orders"."swap_tx" IS NOT NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_delivered" CHECK(("orders"."state" = 'delivered') = ("orders"."delivered_atomic" IS NOT NULL) AND ("orders"."delivered_atomic" IS NULL OR (typeof("orders"."delivered_atomic") = 'text' AND "orders"."delivered_atomic" <> '' AND "orders"."delivered_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."delivered_atomic" = '0' OR "orders"."delivered_atomic" NOT GLOB '0*') AND "orders"."delivered_atomic" <> '0'))),
	CONSTRAINT "orders_returned" CHECK("orders"."returned_atomic" IS NULL OR ("orders"."state" = 'delivered' AND typeof("orders"."returned_atomic") = 'text' AND "orders"."returned_atomic" <> '' AND "orders"."returned_atomic" NOT GLOB '*[^0-9]*' AND ("orders"."returned_atomic" = '0' OR "orders"."returned_atomic" NOT GLOB '0*') AND "orders"."returned_atomic" <> '0')),
	CONSTRAINT "orders_refunding" CHECK("orders"."state" NOT IN ('refunding', 'refunded') OR "orders"."refund_reason" IS NOT NULL),
	CONSTRAINT "orders_refunded" CHECK("orders"."state" <> 'refunded' OR ("orders"."refund_tx" IS NOT NULL AND "orders"."refund_attempts" > 0)),
	CONSTRAINT "orders_attempts" CHECK("orders"."refund_attempts" >= 0 AND ("orders"."refund_tx" IS NULL OR ("orders"."refund_reason" IS NOT NULL AND "orders"."refund_attempts" > 0))),
	CONSTRAINT "orders_held" CHECK(("orders"."state" = 'held') = ("orders"."held_reason" IS NOT NULL)),
	CONSTRAINT "orders_retry" CHECK("orders"."retry_at" IS NULL OR "orders"."state" = 'held'),
	CONSTRAINT "orders_settled" CHECK("orders"."state" IN ('settling', 'failed') OR "orders"."settled_at" IS NOT NULL)
);
CREATE INDEX `orders_payer` ON `orders` (`payer`,`id`);
CREATE INDEX `orders_unfinished` ON `orders` (`state`) WHERE state IN ('settling', 'settled', 'swapping', 'refunding', 'held');
CREATE UNIQUE INDEX `orders_payment` ON `orders` (`payment_id`);
CREATE TABLE `grant_top_ups` (
	`network` text NOT NULL,
	`address` text COLLATE NOCASE NOT NULL,
	`transaction_hash` text NOT NULL,
	`amount_wei` text NOT NULL,
	`fee_wei` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`network`, `address`),
	FOREIGN KEY (`network`,`address`) REFERENCES `grants`(`network`,`address`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "grant_top_ups_transaction" CHECK(length(unhex(substr("grant_top_ups"."transaction_hash", 3))) IS 32 AND "grant_top_ups"."transaction_hash" GLOB '0x*' AND "grant_top_ups"."transaction_hash" = lower("grant_top_ups"."transaction_hash")),
	CONSTRAINT "grant_top_ups_amounts" CHECK(typeof("grant_top_ups"."amount_wei") = 'text' AND "grant_top_ups"."amount_wei" <> '' AND "grant_top_ups"."amount_wei" NOT GLOB '*[^0-9]*' AND ("grant_top_ups"."amount_wei" = '0' OR "grant_top_ups"."amount_wei" NOT GLOB '0*') AND "grant_top_ups"."amount_wei" <> '0' AND typeof("grant_top_ups"."fee_wei") = 'text' AND "grant_top_ups"."fee_wei" <> '' AND "grant_top_ups"."fee_wei" NOT GLOB '*[^0-9]*' AND ("grant_top_ups"."fee_wei" = '0' OR "grant_top_ups"."fee_wei" NOT GLOB '0*'))
);
CREATE INDEX `grant_top_ups_day` ON `grant_top_ups` (`network`,`created_at`);
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
	CONSTRAINT "grants_addresses" CHECK(length(unhex(substr("grants"."address", 3))) IS 20 AND "grants"."address" GLOB '0x*' AND length(unhex(substr("grants"."token", 3))) IS 20 AND "grants"."token" GLOB '0x*'),
	CONSTRAINT "grants_transaction" CHECK(length(unhex(substr("grants"."transaction_hash", 3))) IS 32 AND "grants"."transaction_hash" GLOB '0x*' AND "grants"."transaction_hash" = lower("grants"."transaction_hash")),
	CONSTRAINT "grants_amounts" CHECK(typeof("grants"."amount_wei") = 'text' AND "grants"."amount_wei" <> '' AND "grants"."amount_wei" NOT GLOB '*[^0-9]*' AND ("grants"."amount_wei" = '0' OR "grants"."amount_wei" NOT GLOB '0*') AND "grants"."amount_wei" <> '0' AND typeof("grants"."fee_wei") = 'text' AND "grants"."fee_wei" <> '' AND "grants"."fee_wei" NOT GLOB '*[^0-9]*' AND ("grants"."fee_wei" = '0' OR "grants"."fee_wei" NOT GLOB '0*')),
	CONSTRAINT "grants_approve" CHECK(("grants"."kind" = 'approval') = ("grants"."approve_hash" IS NOT NULL) AND ("grants"."approve_hash" IS NULL OR (length(unhex(substr("grants"."approve_hash", 3))) IS 32 AND "grants"."approve_hash" GLOB '0x*' AND "grants"."approve_hash" = lower("grants"."approve_hash"))))
);
CREATE INDEX `grants_day` ON `grants` (`network`,`created_at`);
CREATE TABLE `assets` (
	`network` text NOT NULL,
	`address` text COLLATE NOCASE NOT NULL,
	`network_name` text NOT NULL,
	`symbol` text NOT NULL,
	`decimals` integer NOT NULL,
	`coin_usd` text NOT NULL,
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`network`, `address`),
	CONSTRAINT "assets_address" CHECK(length(unhex(substr("assets"."address", 3))) IS 20 AND "assets"."address" GLOB '0x*'),
	CONSTRAINT "assets_decimals" CHECK("assets"."decimals" BETWEEN 0 AND 36)
);
CREATE TABLE `own_accounts` (
	`address` text COLLATE NOCASE PRIMARY KEY NOT NULL,
	`added_at` integer NOT NULL,
	CONSTRAINT "own_accounts_address" CHECK(length(unhex(substr("own_accounts"."address", 3))) IS 20 AND "own_accounts"."address" GLOB '0x*')
);
CREATE TABLE `webhooks` (
	`seq` integer PRIMARY KEY NOT NULL,
	`id` text NOT NULL,
	`endpoint` text NOT NULL,
	`origin` text NOT NULL,
	`type` text NOT NULL,
	`subject` text NOT NULL,
	`body` text NOT NULL,
	`state` text NOT NULL,
	`attempts` integer DEFAULT 0 NOT NULL,
	`last_status` integer,
	`last_error` text,
	`created_at` integer NOT NULL,
	`due_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`ended_at` integer,
	CONSTRAINT "webhooks_state" CHECK("webhooks"."state" IN ('waiting', 'delivered', 'failed')),
	CONSTRAINT "webhooks_ended_at" CHECK(("webhooks"."state" = 'waiting') = ("webhooks"."ended_at" IS NULL))
);
CREATE UNIQUE INDEX `webhooks_id` ON `webhooks` (`id`);
CREATE INDEX `webhooks_due` ON `webhooks` (`endpoint`,`due_at`) WHERE state = 'waiting';
CREATE INDEX `webhooks_subject` ON `webhooks` (`endpoint`,`subject`,`seq`) WHERE state = 'waiting';
CREATE INDEX `webhooks_ended` ON `webhooks` (`endpoint`,`ended_at`) WHERE ended_at IS NOT NULL;
CREATE TABLE `entitlements` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`merchant` text NOT NULL,
	`route` text NOT NULL,
	`wallet` text COLLATE NOCASE,
	`fingerprint` text,
	`payment_id` text,
	`network` text,
	`period_ms` integer,
	`uses` integer NOT NULL,
	`uses_max` integer NOT NULL,
	`attempts` integer NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "entitlements_kind" CHECK("entitlements"."kind" IN ('again', 'pass', 'trial', 'day') AND "entitlements"."id" LIKE "entitlements"."kind" || '|%'),
	CONSTRAINT "entitlements_wallet" CHECK(("entitlements"."kind" = 'day') = ("entitlements"."wallet" IS NULL) AND ("entitlements"."kind" = 'day') = ("entitlements"."network" IS NULL) AND ("entitlements"."wallet" IS NULL OR (length(unhex(substr("entitlements"."wallet", 3))) IS 20 AND "entitlements"."wallet" GLOB '0x*' AND "entitlements"."network" GLOB 'eip155:[1-9]*'))),
	CONSTRAINT "entitlements_payment" CHECK(("entitlements"."kind" IN ('again', 'pass')) = ("entitlements"."payment_id" IS NOT NULL) AND ("entitlements"."payment_id" IS NULL) = ("entitlements"."period_ms" IS NULL) AND ("entitlements"."period_ms" IS NULL OR "entitlements"."period_ms" > 0) AND ("entitlements"."kind" = 'again') = ("entitlements"."fingerprint" IS NOT NULL)),
	CONSTRAINT "entitlements_uses" CHECK("entitlements"."uses" >= 0 AND "entitlements"."uses" <= "entitlements"."uses_max" AND "entitlements"."uses" <= "entitlements"."attempts" AND "entitlements"."uses_max" > 0)
) WITHOUT ROWID;
CREATE INDEX `entitlements_wallet` ON `entitlements` (`wallet`,`merchant`,`route`,`fingerprint`,`id`) WHERE wallet IS NOT NULL;
CREATE INDEX `entitlements_expiry` ON `entitlements` (`expires_at`) WHERE expires_at IS NOT NULL;
CREATE TABLE `entitlement_uses` (
	`id` text PRIMARY KEY NOT NULL,
	`entitlement_id` text NOT NULL,
	`day_id` text,
	`wallet` text COLLATE NOCASE NOT NULL,
	`state` text NOT NULL,
	`created_at` integer NOT NULL,
	CONSTRAINT "entitlement_uses_state" CHECK("entitlement_uses"."state" IN ('running', 'delivered', 'failed')),
	CONSTRAINT "entitlement_uses_wallet" CHECK(length(unhex(substr("entitlement_uses"."wallet", 3))) IS 20 AND "entitlement_uses"."wallet" GLOB '0x*')
) WITHOUT ROWID;
CREATE INDEX `entitlement_uses_running` ON `entitlement_uses` (`state`) WHERE state = 'running';
CREATE INDEX `entitlement_uses_created` ON `entitlement_uses` (`created_at`);
CREATE TABLE `refunds` (
	`payment_id` text PRIMARY KEY NOT NULL,
	`account` text COLLATE NOCASE NOT NULL,
	`amount_atomic` text NOT NULL,
	`reason` text NOT NULL,
	`note` text,
	`attempts` integer NOT NULL,
	`paid_hash` text,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`payment_id`) REFERENCES `payments`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "refunds_account" CHECK(length(unhex(substr("refunds"."account", 3))) IS 20 AND "refunds"."account" GLOB '0x*'),
	CONSTRAINT "refunds_amount" CHECK(typeof("refunds"."amount_atomic") = 'text' AND "refunds"."amount_atomic" <> '' AND "refunds"."amount_atomic" NOT GLOB '*[^0-9]*' AND ("refunds"."amount_atomic" = '0' OR "refunds"."amount_atomic" NOT GLOB '0*') AND "refunds"."amount_atomic" <> '0'),
	CONSTRAINT "refunds_reason" CHECK("refunds"."reason" IN ('operator', 'undelivered')),
	CONSTRAINT "refunds_attempts" CHECK("refunds"."attempts" >= 0),
	CONSTRAINT "refunds_paid" CHECK("refunds"."paid_hash" IS NULL OR (length(unhex(substr("refunds"."paid_hash", 3))) IS 32 AND "refunds"."paid_hash" GLOB '0x*' AND "refunds"."paid_hash" = lower("refunds"."paid_hash")))
);
CREATE INDEX `refunds_created` ON `refunds` (`created_at`,`payment_id`);
CREATE INDEX `refunds_open` ON `refunds` (`created_at`,`payment_id`) WHERE paid_hash IS NULL;
CREATE TABLE `channels` (
	`id` text PRIMARY KEY NOT NULL,
	`network` text NOT NULL,
	`payer` text COLLATE NOCASE NOT NULL,
	`payer_authorizer` text COLLATE NOCASE NOT NULL,
	`receiver` text COLLATE NOCASE NOT NULL,
	`receiver_authorizer` text COLLATE NOCASE NOT NULL,
	`token` text COLLATE NOCASE NOT NULL,
	`withdraw_delay` integer NOT NULL,
	`salt` text NOT NULL,
	`charged_atomic` text NOT NULL,
	`signed_atomic` text,
	`signature` text,
	`reserved_id` text,
	`reserved_atomic` text,
	`reserved_signature` text,
	`reserved_fingerprint` text,
	`reserved_at` integer,
	`balance_atomic` text NOT NULL,
	`claimed_atomic` text NOT NULL,
	`withdraw_at` integer,
	`refund_nonce` text NOT NULL,
	`synced_at` integer NOT NULL,
	`used_at` integer NOT NULL,
	`created_at` integer NOT NULL,
	CONSTRAINT "channels_id" CHECK(length(unhex(substr("channels"."id", 3))) IS 32 AND "channels"."id" GLOB '0x*' AND "channels"."id" = lower("channels"."id") AND length(unhex(substr("channels"."salt", 3))) IS 32 AND "channels"."salt" GLOB '0x*' AND "channels"."salt" = lower("channels"."salt")),
	CONSTRAINT "channels_network" CHECK("channels"."network" GLOB 'eip155:[1-9]*'),
	CONSTRAINT "channels_addresses" CHECK(length(unhex(substr("channels"."payer", 3))) IS 20 AND "channels"."payer" GLOB '0x*' AND length(unhex(substr("channels"."payer_authorizer", 3))) IS 20 AND "channels"."payer_authorizer" GLOB '0x*' AND length(unhex(substr("channels"."receiver", 3))) IS 20 AND "channels"."receiver" GLOB '0x*' AND length(unhex(substr("channels"."receiver_authorizer", 3))) IS 20 AND "channels"."receiver_authorizer" GLOB '0x*' AND length(unhex(substr("channels"."token", 3))) IS 20 AND "channels"."token" GLOB '0x*'),
	CONSTRAINT "channels_delay" CHECK("channels"."withdraw_delay" > 0),
	CONSTRAINT "channels_chain" CHECK(typeof("channels"."balance_atomic") = 'text' AND "channels"."balance_atomic" <> '' AND "channels"."balance_atomic" NOT GLOB '*[^0-9]*' AND ("channels"."balance_atomic" = '0' OR "channels"."balance_atomic" NOT GLOB '0*') AND typeof("channels"."claimed_atomic") = 'text' AND "channels"."claimed_atomic" <> '' AND "channels"."claimed_atomic" NOT GLOB '*[^0-9]*' AND ("channels"."claimed_atomic" = '0' OR "channels"."claimed_atomic" NOT GLOB '0*') AND typeof("channels"."refund_nonce") = 'text' AND "channels"."refund_nonce" <> '' AND "channels"."refund_nonce" NOT GLOB '*[^0-9]*' AND ("channels"."refund_nonce" = '0' OR "channels"."refund_nonce" NOT GLOB '0*')),
	CONSTRAINT "channels_charged" CHECK(typeof("channels"."charged_atomic") = 'text' AND "channels"."charged_atomic" <> '' AND "channels"."charged_atomic" NOT GLOB '*[^0-9]*' AND ("channels"."charged_atomic" = '0' OR "channels"."charged_atomic" NOT GLOB '0*') AND (length("channels"."claimed_atomic") < length("channels"."charged_atomic") OR (length("channels"."claimed_atomic") = length("channels"."charged_atomic") AND "channels"."claimed_atomic" <= "channels"."charged_atomic"))),
	CONSTRAINT "channels_signed" CHECK(("channels"."signed_atomic" IS NULL) = ("channels"."signature" IS NULL) AND ("channels"."signed_atomic" IS NULL OR (typeof("channels"."signed_atomic") = 'text' AND "channels"."signed_atomic" <> '' AND "channels"."signed_atomic" NOT GLOB '*[^0-9]*' AND ("channels"."signed_atomic" = '0' OR "channels"."signed_atomic" NOT GLOB '0*') AND (length("channels"."charged_atomic") < length("channels"."signed_atomic") OR (length("channels"."charged_atomic") = length("channels"."signed_atomic") AND "channels"."charged_atomic" <= "channels"."signed_atomic"))))),
	CONSTRAINT "channels_reserved" CHECK(("channels"."reserved_id" IS NULL) = ("channels"."reserved_atomic" IS NULL) AND ("channels"."reserved_id" IS NULL) = ("channels"."reserved_signature" IS NULL) AND ("channels"."reserved_id" IS NULL) = ("channels"."reserved_fingerprint" IS NULL) AND ("channels"."reserved_id" IS NULL) = ("channels"."reserved_at" IS NULL) AND ("channels"."reserved_atomic" IS NULL OR (typeof("channels"."reserved_atomic") = 'text' AND "channels"."reserved_atomic" <> '' AND "channels"."reserved_atomic" NOT GLOB '*[^0-9]*' AND ("channels"."reserved_atomic" = '0' OR "channels"."reserved_atomic" NOT GLOB '0*'))) AND ("channels"."reserved_id" IS NULL OR "channels"."reserved_id" LIKE 'refund:%' OR "channels"."balance_atomic" <> "channels"."claimed_atomic" OR "channels"."withdraw_at" IS NOT NULL))
);
CREATE INDEX `channels_created` ON `channels` (`created_at`,`id`);
CREATE INDEX `channels_open` ON `channels` (`network`,`created_at`,`id`) WHERE balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL;
-- Money is authorized or paid once. Only the payment with the id of a sent authorization settles its money.
CREATE TRIGGER `payments_authorized` BEFORE INSERT ON `payments`
WHEN EXISTS (SELECT 1 FROM `authorizations` AS a WHERE a.`network` = NEW.`network` AND a.`asset` = NEW.`asset` AND a.`payer` = NEW.`payer` AND a.`nonce` = NEW.`nonce` AND NOT (a.`id` = NEW.`id` AND a.`state` = 'sent' AND a.`charge_atomic` = NEW.`amount_atomic`))
BEGIN
	SELECT RAISE(ABORT, 'money-authorized');
END;
CREATE TRIGGER `authorizations_paid` BEFORE INSERT ON `authorizations`
WHEN EXISTS (SELECT 1 FROM `payments` AS p WHERE p.`network` = NEW.`network` AND p.`asset` = NEW.`asset` AND p.`payer` = NEW.`payer` AND p.`nonce` = NEW.`nonce`)
BEGIN
	SELECT RAISE(ABORT, 'money-paid');
END;
-- The states of db/Authorization.ts. What the payer signed, and what it was charged, does not change.
CREATE TRIGGER `authorizations_transitions` BEFORE UPDATE OF `state` ON `authorizations`
WHEN old.state <> new.state AND (old.state, new.state) NOT IN (VALUES
	('authorized', 'metered'),
	('authorized', 'void'),
	('metered', 'sent'),
	('metered', 'failed')
)
BEGIN
	SELECT RAISE(ABORT, 'an authorization does not change its state like that');
END;
CREATE TRIGGER `authorizations_agreed` BEFORE UPDATE ON `authorizations`
WHEN (old.network, old.asset, old.payer, old.payee, old.ceiling_atomic, old.facilitator, old.nonce, old.valid_after, old.valid_before, old.signature)
	IS NOT (new.network, new.asset, new.payer, new.payee, new.ceiling_atomic, new.facilitator, new.nonce, new.valid_after, new.valid_before, new.signature)
	OR (old.charge_atomic IS NOT NULL AND new.charge_atomic IS NOT old.charge_atomic)
BEGIN
	SELECT RAISE(ABORT, 'what was authorized and charged does not change');
END;
CREATE TRIGGER `authorizations_kept` BEFORE DELETE ON `authorizations`
BEGIN
	SELECT RAISE(ABORT, 'an authorization is never deleted');
END;
-- The account of a refund is that of all its attempts, because its nonce lets the money move once.
CREATE TRIGGER `refunds_agreed` BEFORE UPDATE ON `refunds`
WHEN (old.payment_id, old.account, old.amount_atomic, old.reason, old.created_at)
	IS NOT (new.payment_id, new.account, new.amount_atomic, new.reason, new.created_at)
	OR new.attempts < old.attempts
BEGIN
	SELECT RAISE(ABORT, 'what a refund was agreed on does not change');
END;
CREATE TRIGGER `refunds_kept` BEFORE DELETE ON `refunds`
BEGIN
	SELECT RAISE(ABORT, 'a refund is never deleted');
END;
-- What makes a channel does not change, and what was charged does not fall.
CREATE TRIGGER `channels_agreed` BEFORE UPDATE OF `id`, `network`, `payer`, `payer_authorizer`, `receiver`, `receiver_authorizer`, `token`, `withdraw_delay`, `salt`, `created_at` ON `channels`
WHEN (old.id, old.network, old.payer, old.payer_authorizer, old.receiver, old.receiver_authorizer, old.token, old.withdraw_delay, old.salt, old.created_at)
	IS NOT (new.id, new.network, new.payer, new.payer_authorizer, new.receiver, new.receiver_authorizer, new.token, new.withdraw_delay, new.salt, new.created_at)
BEGIN
	SELECT RAISE(ABORT, 'what makes a channel does not change');
END;
CREATE TRIGGER `channels_charged` BEFORE UPDATE OF `charged_atomic` ON `channels`
WHEN length(new.charged_atomic) < length(old.charged_atomic)
	OR (length(new.charged_atomic) = length(old.charged_atomic) AND new.charged_atomic < old.charged_atomic)
BEGIN
	SELECT RAISE(ABORT, 'what a channel was charged does not fall');
END;
CREATE TRIGGER `channels_kept` BEFORE DELETE ON `channels`
BEGIN
	SELECT RAISE(ABORT, 'a channel is never deleted');
END;
-- The states of db/Order.ts. A failed order settles again when its transaction is mined after all: the desk has
-- the money then.
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
-- What was agreed does not change, and what may have been swapped is not refunded.
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
CREATE TRIGGER `orders_swapped_once` BEFORE UPDATE OF `swap_tx` ON `orders`
WHEN old.swap_tx IS NOT NULL AND new.swap_tx IS NULL
BEGIN
	SELECT RAISE(ABORT, 'a swap that was written is not forgotten');
END;
CREATE TRIGGER `orders_swap_not_refunded` BEFORE UPDATE OF `state` ON `orders`
WHEN old.state = 'held' AND new.state = 'refunding' AND old.refund_reason IS NULL
BEGIN
	SELECT RAISE(ABORT, 'a swap that succeeded is not refunded');
END;
CREATE TRIGGER `orders_kept` BEFORE DELETE ON `orders`
BEGIN
	SELECT RAISE(ABORT, 'an order is never deleted');
END;
