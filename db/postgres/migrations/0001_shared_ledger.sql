-- The first schema: first the tables, keys and indexes that SQLite has, too. The CHECKs of `payments`, `transactions` and
-- `gas_spent` are the functions below.
CREATE TABLE "authorizations" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"chain_id" bigint NOT NULL,
	"asset" text COLLATE "C" /* address */ NOT NULL,
	"payer" text COLLATE "C" /* address */ NOT NULL,
	"payee" text COLLATE "C" /* address */ NOT NULL,
	"ceiling_atomic" text COLLATE "C" NOT NULL,
	"facilitator" text COLLATE "C" /* address */ NOT NULL,
	"nonce" text COLLATE "C" NOT NULL,
	"valid_after" text COLLATE "C" NOT NULL,
	"valid_before" text COLLATE "C" NOT NULL,
	"signature" text COLLATE "C" NOT NULL,
	"permit2612_value" text COLLATE "C",
	"permit2612_deadline" text COLLATE "C",
	"permit2612_signature" text COLLATE "C",
	"product" text COLLATE "C" NOT NULL,
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"fingerprint" text COLLATE "C" NOT NULL,
	"resource" text COLLATE "C" NOT NULL,
	"idempotency_key" text COLLATE "C",
	"credential_hash" text COLLATE "C",
	"client" text COLLATE "C",
	"bound" boolean NOT NULL,
	"received_at" bigint NOT NULL,
	"known_block" bigint NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"charge_atomic" text COLLATE "C",
	"units" text COLLATE "C",
	"is_delivered" boolean DEFAULT false NOT NULL,
	"upstream_status" bigint,
	"truncated" boolean DEFAULT false NOT NULL,
	"failed_at" bigint,
	"created_at" bigint NOT NULL,
	CONSTRAINT "authorizations_network" CHECK ("authorizations"."network" = 'eip155:' || "authorizations"."chain_id" AND "authorizations"."chain_id" > 0),
	CONSTRAINT "authorizations_addresses" CHECK ("authorizations"."asset" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."asset") = 42 AND "authorizations"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."payer") = 42 AND "authorizations"."payee" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."payee") = 42 AND "authorizations"."facilitator" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."facilitator") = 42),
	CONSTRAINT "authorizations_ceiling" CHECK ("authorizations"."ceiling_atomic" ~ '^(0|[1-9][0-9]*)$' AND "authorizations"."ceiling_atomic" <> '0'),
	CONSTRAINT "authorizations_nonce" CHECK ("authorizations"."nonce" ~ '^0x[0-9a-f]*$' AND length("authorizations"."nonce") = 66),
	CONSTRAINT "authorizations_window" CHECK ("authorizations"."valid_after" ~ '^(0|[1-9][0-9]*)$' AND "authorizations"."valid_before" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "authorizations_product" CHECK ("authorizations"."product" IN ('gateway', 'facilitator')),
	CONSTRAINT "authorizations_state" CHECK ("authorizations"."state" IN ('authorized', 'metered', 'sent', 'void', 'failed')),
	CONSTRAINT "authorizations_charge" CHECK (("authorizations"."charge_atomic" IS NULL) = ("authorizations"."state" = 'authorized') AND ("authorizations"."charge_atomic" IS NULL OR ("authorizations"."charge_atomic" ~ '^(0|[1-9][0-9]*)$'))),
	CONSTRAINT "authorizations_void" CHECK ("authorizations"."charge_atomic" IS NULL OR ("authorizations"."charge_atomic" = '0') = ("authorizations"."state" = 'void')),
	CONSTRAINT "authorizations_most" CHECK ("authorizations"."charge_atomic" IS NULL OR length("authorizations"."charge_atomic") < length("authorizations"."ceiling_atomic") OR (length("authorizations"."charge_atomic") = length("authorizations"."ceiling_atomic") AND "authorizations"."charge_atomic" <= "authorizations"."ceiling_atomic")),
	CONSTRAINT "authorizations_units" CHECK (("authorizations"."units" IS NULL) = ("authorizations"."charge_atomic" IS NULL) AND ("authorizations"."units" IS NULL OR "authorizations"."units"::json IS NOT NULL)),
	CONSTRAINT "authorizations_delivered" CHECK ("authorizations"."is_delivered" = ("authorizations"."upstream_status" IS NOT NULL) AND (NOT "authorizations"."is_delivered" OR "authorizations"."state" <> 'authorized')),
	CONSTRAINT "authorizations_flags" CHECK ("authorizations"."bound" IN (false, true) AND "authorizations"."truncated" IN (false, true) AND "authorizations"."is_delivered" IN (false, true))
);
CREATE TABLE "assets" (
	"network" text COLLATE "C" NOT NULL,
	"address" text COLLATE "C" /* address */ NOT NULL,
	"network_name" text COLLATE "C" NOT NULL,
	"symbol" text COLLATE "C" NOT NULL,
	"decimals" bigint NOT NULL,
	"coin_usd" text COLLATE "C" NOT NULL,
	"updated_at" bigint NOT NULL,
	CONSTRAINT "assets_address" CHECK ("assets"."address" ~ '^0x[0-9a-fA-F]*$' AND length("assets"."address") = 42),
	CONSTRAINT "assets_decimals" CHECK ("assets"."decimals" BETWEEN 0 AND 36)
);
CREATE TABLE "requests" (
	"day" bigint NOT NULL,
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"client" text COLLATE "C" NOT NULL,
	"step" text COLLATE "C" NOT NULL,
	"detail" text COLLATE "C" NOT NULL,
	"times" bigint NOT NULL,
	CONSTRAINT "requests_day_merchant_route_client_step_detail_pk" PRIMARY KEY("day","merchant","route","client","step","detail"),
	CONSTRAINT "requests_day" CHECK ("requests"."day" >= 0 AND "requests"."day" % 86400000 = 0),
	CONSTRAINT "requests_step" CHECK ("requests"."step" IN ('asked', 'tried', 'refused', 'paid', 'free')),
	CONSTRAINT "requests_detail" CHECK (("requests"."detail" = '') = ("requests"."step" IN ('asked', 'paid'))),
	CONSTRAINT "requests_times" CHECK ("requests"."times" >= 0)
);
CREATE TABLE "own_accounts" (
	"address" text COLLATE "C" /* address */ NOT NULL,
	"added_at" bigint NOT NULL,
	CONSTRAINT "own_accounts_address" CHECK ("own_accounts"."address" ~ '^0x[0-9a-fA-F]*$' AND length("own_accounts"."address") = 42)
);
CREATE TABLE "grant_top_ups" (
	"network" text COLLATE "C" NOT NULL,
	"address" text COLLATE "C" /* address */ NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	"amount_wei" text COLLATE "C" NOT NULL,
	"fee_wei" text COLLATE "C" NOT NULL,
	"created_at" bigint NOT NULL,
	CONSTRAINT "grant_top_ups_transaction" CHECK ("grant_top_ups"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("grant_top_ups"."transaction_hash") = 66),
	CONSTRAINT "grant_top_ups_amounts" CHECK ("grant_top_ups"."amount_wei" ~ '^(0|[1-9][0-9]*)$' AND "grant_top_ups"."amount_wei" <> '0' AND "grant_top_ups"."fee_wei" ~ '^(0|[1-9][0-9]*)$')
);
CREATE TABLE "grants" (
	"network" text COLLATE "C" NOT NULL,
	"address" text COLLATE "C" /* address */ NOT NULL,
	"token" text COLLATE "C" /* address */ NOT NULL,
	"kind" text COLLATE "C" NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	"amount_wei" text COLLATE "C" NOT NULL,
	"fee_wei" text COLLATE "C" NOT NULL,
	"approve_hash" text COLLATE "C",
	"created_at" bigint NOT NULL,
	CONSTRAINT "grants_kind" CHECK ("grants"."kind" IN ('grant', 'approval')),
	CONSTRAINT "grants_network" CHECK ("grants"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "grants_addresses" CHECK ("grants"."address" ~ '^0x[0-9a-fA-F]*$' AND length("grants"."address") = 42 AND "grants"."token" ~ '^0x[0-9a-fA-F]*$' AND length("grants"."token") = 42),
	CONSTRAINT "grants_transaction" CHECK ("grants"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("grants"."transaction_hash") = 66),
	CONSTRAINT "grants_amounts" CHECK ("grants"."amount_wei" ~ '^(0|[1-9][0-9]*)$' AND "grants"."amount_wei" <> '0' AND "grants"."fee_wei" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "grants_approve" CHECK (("grants"."kind" = 'approval') = ("grants"."approve_hash" IS NOT NULL) AND ("grants"."approve_hash" IS NULL OR ("grants"."approve_hash" ~ '^0x[0-9a-f]*$' AND length("grants"."approve_hash") = 66)))
);
CREATE TABLE "job_transactions" (
	"job_id" text COLLATE "C" NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	CONSTRAINT "job_transactions_transaction_hash_pk" PRIMARY KEY("transaction_hash")
);
CREATE TABLE "jobs" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"kind" text COLLATE "C" NOT NULL,
	"product" text COLLATE "C" NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"relayer" text COLLATE "C" /* address */ NOT NULL,
	"nonce" bigint NOT NULL,
	"to" text COLLATE "C" /* address */ NOT NULL,
	"value_wei" text COLLATE "C" NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	"block_number" bigint,
	"receipt" text COLLATE "C",
	"created_at" bigint NOT NULL,
	"ended_at" bigint,
	CONSTRAINT "jobs_kind" CHECK ("jobs"."kind" IN ('swap', 'refund', 'grant', 'allowance', 'channel')),
	CONSTRAINT "jobs_product" CHECK ("jobs"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')),
	CONSTRAINT "jobs_network" CHECK ("jobs"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "jobs_nonce" CHECK ("jobs"."nonce" >= 0),
	CONSTRAINT "jobs_addresses" CHECK ("jobs"."relayer" ~ '^0x[0-9a-fA-F]*$' AND length("jobs"."relayer") = 42 AND "jobs"."to" ~ '^0x[0-9a-fA-F]*$' AND length("jobs"."to") = 42),
	CONSTRAINT "jobs_value" CHECK ("jobs"."value_wei" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "jobs_state" CHECK ("jobs"."state" IN ('broadcast', 'confirmed', 'failed', 'replaced')),
	CONSTRAINT "jobs_transaction" CHECK ("jobs"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("jobs"."transaction_hash") = 66),
	CONSTRAINT "jobs_included" CHECK (("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."block_number" IS NOT NULL) AND ("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."receipt" IS NOT NULL)),
	CONSTRAINT "jobs_ended" CHECK (("jobs"."state" = 'broadcast') = ("jobs"."ended_at" IS NULL)),
	CONSTRAINT "jobs_receipt" CHECK ("jobs"."receipt" IS NULL OR "jobs"."receipt"::json IS NOT NULL)
);
CREATE TABLE "offers" (
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"asset" text COLLATE "C" /* address */ NOT NULL,
	"pay_to" text COLLATE "C" /* address */ NOT NULL,
	"amount_atomic" text COLLATE "C" NOT NULL,
	"retired_at" bigint NOT NULL,
	CONSTRAINT "offers_addresses" CHECK ("offers"."asset" ~ '^0x[0-9a-fA-F]*$' AND length("offers"."asset") = 42),
	CONSTRAINT "offers_payee" CHECK ("offers"."pay_to" ~ '^0x[0-9a-fA-F]*$' AND length("offers"."pay_to") = 42),
	CONSTRAINT "offers_amount" CHECK ("offers"."amount_atomic" ~ '^(0|[1-9][0-9]*)$')
);
CREATE TABLE "orders" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"payment_id" text COLLATE "C" NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"symbol" text COLLATE "C" NOT NULL,
	"token" text COLLATE "C" /* address */ NOT NULL,
	"pool" text COLLATE "C" /* address */ NOT NULL,
	"pool_fee" bigint NOT NULL,
	"payer" text COLLATE "C" /* address */ NOT NULL,
	"recipient" text COLLATE "C" /* address */ NOT NULL,
	"usdg_atomic" text COLLATE "C" NOT NULL,
	"total_atomic" text COLLATE "C" NOT NULL,
	"quoted_atomic" text COLLATE "C" NOT NULL,
	"floor_atomic" text COLLATE "C" NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"settlement_tx" text COLLATE "C" NOT NULL,
	"swap_tx" text COLLATE "C",
	"refund_tx" text COLLATE "C",
	"delivered_atomic" text COLLATE "C",
	"returned_atomic" text COLLATE "C",
	"refund_reason" text COLLATE "C",
	"held_reason" text COLLATE "C",
	"refund_attempts" bigint DEFAULT 0 NOT NULL,
	"retry_at" bigint,
	"created_at" bigint NOT NULL,
	"updated_at" bigint NOT NULL,
	"settled_at" bigint,
	CONSTRAINT "orders_id" CHECK (length("orders"."id") = 36 AND "orders"."id" ~ '^ord_'),
	CONSTRAINT "orders_network" CHECK ("orders"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "orders_addresses" CHECK ("orders"."token" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."token") = 42 AND "orders"."pool" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."pool") = 42 AND "orders"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."payer") = 42 AND "orders"."recipient" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."recipient") = 42),
	CONSTRAINT "orders_amounts" CHECK ("orders"."usdg_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."usdg_atomic" <> '0' AND "orders"."total_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."total_atomic" <> '0' AND "orders"."quoted_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."floor_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."floor_atomic" <> '0'),
	CONSTRAINT "orders_state" CHECK ("orders"."state" IN ('settling', 'settled', 'swapping', 'delivered', 'refunding', 'refunded', 'held', 'failed')),
	CONSTRAINT "orders_settlement" CHECK ("orders"."settlement_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."settlement_tx") = 66),
	CONSTRAINT "orders_swap" CHECK ("orders"."swap_tx" IS NULL OR "orders"."swap_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."swap_tx") = 66),
	CONSTRAINT "orders_refund" CHECK ("orders"."refund_tx" IS NULL OR "orders"."refund_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."refund_tx") = 66),
	CONSTRAINT "orders_unsent" CHECK ("orders"."state" NOT IN ('settling', 'settled', 'failed') OR ("orders"."swap_tx" IS NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_swapped" CHECK ("orders"."state" NOT IN ('swapping', 'delivered') OR ("orders"."swap_tx" IS NOT NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_delivered" CHECK (("orders"."state" = 'delivered') = ("orders"."delivered_atomic" IS NOT NULL) AND ("orders"."delivered_atomic" IS NULL OR ("orders"."delivered_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."delivered_atomic" <> '0'))),
	CONSTRAINT "orders_returned" CHECK ("orders"."returned_atomic" IS NULL OR ("orders"."state" = 'delivered' AND "orders"."returned_atomic" ~ '^[1-9][0-9]*$')),
	CONSTRAINT "orders_refunding" CHECK ("orders"."state" NOT IN ('refunding', 'refunded') OR "orders"."refund_reason" IS NOT NULL),
	CONSTRAINT "orders_refunded" CHECK ("orders"."state" <> 'refunded' OR ("orders"."refund_tx" IS NOT NULL AND "orders"."refund_attempts" > 0)),
	CONSTRAINT "orders_attempts" CHECK ("orders"."refund_attempts" >= 0 AND ("orders"."refund_tx" IS NULL OR ("orders"."refund_reason" IS NOT NULL AND "orders"."refund_attempts" > 0))),
	CONSTRAINT "orders_held" CHECK (("orders"."state" = 'held') = ("orders"."held_reason" IS NOT NULL)),
	CONSTRAINT "orders_retry" CHECK ("orders"."retry_at" IS NULL OR "orders"."state" = 'held'),
	CONSTRAINT "orders_settled" CHECK ("orders"."state" IN ('settling', 'failed') OR "orders"."settled_at" IS NOT NULL)
);
CREATE TABLE "answers" (
	"payment_id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"status" bigint NOT NULL,
	"headers" text COLLATE "C" NOT NULL,
	"body" "bytea" NOT NULL,
	"created_at" bigint NOT NULL,
	"expires_at" bigint NOT NULL,
	CONSTRAINT "answers_status" CHECK ("answers"."status" BETWEEN 200 AND 599),
	CONSTRAINT "answers_headers" CHECK ("answers"."headers"::json IS NOT NULL),
	CONSTRAINT "answers_times" CHECK ("answers"."expires_at" > "answers"."created_at")
);
CREATE TABLE "gas_spent" (
	"network" text COLLATE "C" NOT NULL,
	"product" text COLLATE "C" NOT NULL,
	"day" text COLLATE "C" NOT NULL,
	"wei" numeric NOT NULL,
	"wasted_wei" numeric DEFAULT '0' NOT NULL,
	CONSTRAINT "gas_spent_network_product_day_pk" PRIMARY KEY("network","product","day")
);
CREATE TABLE "merchants" (
	"slug" text COLLATE "C" PRIMARY KEY NOT NULL,
	"title" text COLLATE "C" NOT NULL,
	"hash" text COLLATE "C" NOT NULL,
	"json" text COLLATE "C" NOT NULL,
	"updated_at" bigint NOT NULL
);
CREATE TABLE "meta" (
	"key" text COLLATE "C" PRIMARY KEY NOT NULL,
	"value" text COLLATE "C" NOT NULL
);
CREATE TABLE "payments" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"method" text COLLATE "C" NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"chain_id" bigint NOT NULL,
	"asset" text COLLATE "C" /* address */ NOT NULL,
	"payer" text COLLATE "C" /* address */ NOT NULL,
	"payee" text COLLATE "C" /* address */ NOT NULL,
	"amount_atomic" text COLLATE "C" NOT NULL,
	"nonce" text COLLATE "C" NOT NULL,
	"valid_after" text COLLATE "C" NOT NULL,
	"valid_before" text COLLATE "C" NOT NULL,
	"signature" text COLLATE "C" NOT NULL,
	"product" text COLLATE "C" NOT NULL,
	"protocol" text COLLATE "C" NOT NULL,
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"fingerprint" text COLLATE "C" NOT NULL,
	"resource" text COLLATE "C" NOT NULL,
	"idempotency_key" text COLLATE "C",
	"challenge_id" text COLLATE "C",
	"credential_hash" text COLLATE "C",
	"client" text COLLATE "C",
	"bound" boolean NOT NULL,
	"received_at" bigint NOT NULL,
	"known_block" bigint NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	"log_index" bigint,
	"block_number" bigint,
	"delivery" text COLLATE "C" DEFAULT 'none' NOT NULL,
	"attempts" bigint DEFAULT 0 NOT NULL,
	"upstream_status" bigint,
	"truncated" boolean DEFAULT false NOT NULL,
	"answered" boolean DEFAULT false NOT NULL,
	"redeem_token_hash" text COLLATE "C",
	"redeem_until" bigint,
	"permit2612_value" text COLLATE "C",
	"permit2612_deadline" text COLLATE "C",
	"permit2612_signature" text COLLATE "C",
	"ceiling_atomic" text COLLATE "C",
	"facilitator" text COLLATE "C" /* address */,
	"nonce_used" boolean DEFAULT false NOT NULL,
	"created_at" bigint NOT NULL,
	"confirmed_at" bigint,
	"delivered_at" bigint
);
CREATE TABLE "transaction_members" (
	"transaction_hash" text COLLATE "C" NOT NULL,
	"position" bigint NOT NULL,
	"payment_id" text COLLATE "C" NOT NULL,
	CONSTRAINT "transaction_members_transaction_hash_position_pk" PRIMARY KEY("transaction_hash","position"),
	CONSTRAINT "transaction_members_position" CHECK ("transaction_members"."position" >= 0)
);
CREATE TABLE "transactions" (
	"hash" text COLLATE "C" PRIMARY KEY NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"relayer" text COLLATE "C" /* address */ NOT NULL,
	"nonce" bigint NOT NULL,
	"kind" text COLLATE "C" NOT NULL,
	"product" text COLLATE "C" NOT NULL,
	"to" text COLLATE "C" /* address */ NOT NULL,
	"raw" text COLLATE "C" NOT NULL,
	"gas_limit" text COLLATE "C" NOT NULL,
	"max_fee_wei" text COLLATE "C" NOT NULL,
	"max_tip_wei" text COLLATE "C" NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"created_at" bigint NOT NULL,
	"first_sent_at" bigint,
	"block_number" bigint,
	"cost_wei" text COLLATE "C"
);
CREATE TABLE "webhooks" (
	"seq" bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY (sequence name "webhooks_seq_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text COLLATE "C" NOT NULL,
	"endpoint" text COLLATE "C" NOT NULL,
	"origin" text COLLATE "C" NOT NULL,
	"type" text COLLATE "C" NOT NULL,
	"subject" text COLLATE "C" NOT NULL,
	"body" text COLLATE "C" NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"attempts" bigint DEFAULT 0 NOT NULL,
	"last_status" bigint,
	"last_error" text COLLATE "C",
	"created_at" bigint NOT NULL,
	"due_at" bigint NOT NULL,
	"expires_at" bigint NOT NULL,
	"ended_at" bigint,
	CONSTRAINT "webhooks_id" UNIQUE("id"),
	CONSTRAINT "webhooks_state" CHECK ("webhooks"."state" IN ('waiting', 'delivered', 'failed')),
	CONSTRAINT "webhooks_ended_at" CHECK (("webhooks"."state" = 'waiting') = ("webhooks"."ended_at" IS NULL))
);
CREATE TABLE "entitlements" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"kind" text COLLATE "C" NOT NULL,
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"wallet" text COLLATE "C" /* address */,
	"fingerprint" text COLLATE "C",
	"payment_id" text COLLATE "C",
	"network" text COLLATE "C",
	"period_ms" bigint,
	"uses" bigint NOT NULL,
	"uses_max" bigint NOT NULL,
	"attempts" bigint NOT NULL,
	"created_at" bigint NOT NULL,
	"expires_at" bigint,
	CONSTRAINT "entitlements_kind" CHECK ("entitlements"."kind" IN ('again', 'pass', 'trial', 'day') AND "entitlements"."id" LIKE "entitlements"."kind" || '|%'),
	CONSTRAINT "entitlements_wallet" CHECK (("entitlements"."kind" = 'day') = ("entitlements"."wallet" IS NULL) AND ("entitlements"."kind" = 'day') = ("entitlements"."network" IS NULL) AND ("entitlements"."wallet" IS NULL OR ("entitlements"."wallet" ~ '^0x[0-9a-fA-F]*$' AND length("entitlements"."wallet") = 42 AND "entitlements"."network" ~ '^eip155:[1-9]'))),
	CONSTRAINT "entitlements_payment" CHECK (("entitlements"."kind" IN ('again', 'pass')) = ("entitlements"."payment_id" IS NOT NULL) AND ("entitlements"."payment_id" IS NULL) = ("entitlements"."period_ms" IS NULL) AND ("entitlements"."period_ms" IS NULL OR "entitlements"."period_ms" > 0) AND ("entitlements"."kind" = 'again') = ("entitlements"."fingerprint" IS NOT NULL)),
	CONSTRAINT "entitlements_uses" CHECK ("entitlements"."uses" >= 0 AND "entitlements"."uses" <= "entitlements"."uses_max" AND "entitlements"."uses" <= "entitlements"."attempts" AND "entitlements"."uses_max" > 0)
);
CREATE TABLE "entitlement_uses" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"entitlement_id" text COLLATE "C" NOT NULL,
	"day_id" text COLLATE "C",
	"wallet" text COLLATE "C" /* address */ NOT NULL,
	"state" text COLLATE "C" NOT NULL,
	"created_at" bigint NOT NULL,
	CONSTRAINT "entitlement_uses_state" CHECK ("entitlement_uses"."state" IN ('running', 'delivered', 'failed')),
	CONSTRAINT "entitlement_uses_wallet" CHECK ("entitlement_uses"."wallet" ~ '^0x[0-9a-fA-F]*$' AND length("entitlement_uses"."wallet") = 42)
);
CREATE TABLE "refunds" (
	"payment_id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"account" text COLLATE "C" /* address */ NOT NULL,
	"amount_atomic" text COLLATE "C" NOT NULL,
	"reason" text COLLATE "C" NOT NULL,
	"note" text COLLATE "C",
	"attempts" bigint NOT NULL,
	"paid_hash" text COLLATE "C",
	"created_at" bigint NOT NULL,
	CONSTRAINT "refunds_account" CHECK ("refunds"."account" ~ '^0x[0-9a-fA-F]*$' AND length("refunds"."account") = 42),
	CONSTRAINT "refunds_amount" CHECK ("refunds"."amount_atomic" ~ '^(0|[1-9][0-9]*)$' AND "refunds"."amount_atomic" <> '0'),
	CONSTRAINT "refunds_reason" CHECK ("refunds"."reason" IN ('operator', 'undelivered')),
	CONSTRAINT "refunds_attempts" CHECK ("refunds"."attempts" >= 0),
	CONSTRAINT "refunds_paid" CHECK ("refunds"."paid_hash" IS NULL OR ("refunds"."paid_hash" ~ '^0x[0-9a-f]*$' AND length("refunds"."paid_hash") = 66))
);
CREATE TABLE "channels" (
	"id" text COLLATE "C" PRIMARY KEY NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"payer" text COLLATE "C" /* address */ NOT NULL,
	"payer_authorizer" text COLLATE "C" /* address */ NOT NULL,
	"receiver" text COLLATE "C" /* address */ NOT NULL,
	"receiver_authorizer" text COLLATE "C" /* address */ NOT NULL,
	"token" text COLLATE "C" /* address */ NOT NULL,
	"withdraw_delay" bigint NOT NULL,
	"salt" text COLLATE "C" NOT NULL,
	"charged_atomic" text COLLATE "C" NOT NULL,
	"signed_atomic" text COLLATE "C",
	"signature" text COLLATE "C",
	"reserved_id" text COLLATE "C",
	"reserved_atomic" text COLLATE "C",
	"reserved_signature" text COLLATE "C",
	"reserved_fingerprint" text COLLATE "C",
	"reserved_at" bigint,
	"balance_atomic" text COLLATE "C" NOT NULL,
	"claimed_atomic" text COLLATE "C" NOT NULL,
	"withdraw_at" bigint,
	"refund_nonce" text COLLATE "C" NOT NULL,
	"synced_at" bigint NOT NULL,
	"used_at" bigint NOT NULL,
	"created_at" bigint NOT NULL,
	CONSTRAINT "channels_id" CHECK ("channels"."id" ~ '^0x[0-9a-f]*$' AND length("channels"."id") = 66 AND "channels"."salt" ~ '^0x[0-9a-f]*$' AND length("channels"."salt") = 66),
	CONSTRAINT "channels_network" CHECK ("channels"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "channels_addresses" CHECK ("channels"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("channels"."payer") = 42 AND "channels"."payer_authorizer" ~ '^0x[0-9a-fA-F]*$' AND length("channels"."payer_authorizer") = 42 AND "channels"."receiver" ~ '^0x[0-9a-fA-F]*$' AND length("channels"."receiver") = 42 AND "channels"."receiver_authorizer" ~ '^0x[0-9a-fA-F]*$' AND length("channels"."receiver_authorizer") = 42 AND "channels"."token" ~ '^0x[0-9a-fA-F]*$' AND length("channels"."token") = 42),
	CONSTRAINT "channels_delay" CHECK ("channels"."withdraw_delay" > 0),
	CONSTRAINT "channels_chain" CHECK ("channels"."balance_atomic" ~ '^(0|[1-9][0-9]*)$' AND "channels"."claimed_atomic" ~ '^(0|[1-9][0-9]*)$' AND "channels"."refund_nonce" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "channels_charged" CHECK ("channels"."charged_atomic" ~ '^(0|[1-9][0-9]*)$' AND (length("channels"."claimed_atomic") < length("channels"."charged_atomic") OR (length("channels"."claimed_atomic") = length("channels"."charged_atomic") AND "channels"."claimed_atomic" <= "channels"."charged_atomic"))),
	CONSTRAINT "channels_signed" CHECK (("channels"."signed_atomic" IS NULL) = ("channels"."signature" IS NULL) AND ("channels"."signed_atomic" IS NULL OR ("channels"."signed_atomic" ~ '^(0|[1-9][0-9]*)$' AND (length("channels"."charged_atomic") < length("channels"."signed_atomic") OR (length("channels"."charged_atomic") = length("channels"."signed_atomic") AND "channels"."charged_atomic" <= "channels"."signed_atomic"))))),
	CONSTRAINT "channels_reserved" CHECK (num_nulls("channels"."reserved_id", "channels"."reserved_atomic", "channels"."reserved_signature", "channels"."reserved_fingerprint", "channels"."reserved_at") IN (0, 5) AND ("channels"."reserved_atomic" IS NULL OR "channels"."reserved_atomic" ~ '^(0|[1-9][0-9]*)$') AND ("channels"."reserved_id" IS NULL OR "channels"."reserved_id" LIKE 'refund:%' OR "channels"."balance_atomic" <> "channels"."claimed_atomic" OR "channels"."withdraw_at" IS NOT NULL))
);
ALTER TABLE "job_transactions" ADD CONSTRAINT "job_transactions_job_id_jobs_id_fk" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "job_transactions" ADD CONSTRAINT "job_transactions_transaction_hash_transactions_hash_fk" FOREIGN KEY ("transaction_hash") REFERENCES "transactions"("hash") ON DELETE no action ON UPDATE no action;
ALTER TABLE "orders" ADD CONSTRAINT "orders_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "answers" ADD CONSTRAINT "answers_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "transaction_members" ADD CONSTRAINT "transaction_members_transaction_hash_transactions_hash_fk" FOREIGN KEY ("transaction_hash") REFERENCES "transactions"("hash") ON DELETE no action ON UPDATE no action;
ALTER TABLE "transaction_members" ADD CONSTRAINT "transaction_members_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "entitlements" ADD CONSTRAINT "entitlements_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "refunds" ADD CONSTRAINT "refunds_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;
CREATE UNIQUE INDEX "authorizations_money" ON "authorizations" USING btree ("network",lower("asset"),lower("payer"),"nonce");
CREATE INDEX "authorizations_open" ON "authorizations" USING btree ("state") WHERE state IN ('authorized', 'metered');
CREATE INDEX "authorizations_failed" ON "authorizations" USING btree (lower("payer"),"failed_at") WHERE failed_at IS NOT NULL;
CREATE INDEX "authorizations_idempotency" ON "authorizations" USING btree ("merchant","route",lower("payer"),"idempotency_key") WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX "assets_key" ON "assets" USING btree ("network",lower("address"));
CREATE UNIQUE INDEX "own_accounts_key" ON "own_accounts" USING btree (lower("address"));
CREATE UNIQUE INDEX "grant_top_ups_key" ON "grant_top_ups" USING btree ("network",lower("address"));
CREATE INDEX "grant_top_ups_day" ON "grant_top_ups" USING btree ("network","created_at");
CREATE UNIQUE INDEX "grants_key" ON "grants" USING btree ("network",lower("address"));
CREATE INDEX "grants_day" ON "grants" USING btree ("network","created_at");
CREATE INDEX "job_transactions_job" ON "job_transactions" USING btree ("job_id");
CREATE INDEX "jobs_unfinished" ON "jobs" USING btree ("state") WHERE state = 'broadcast';
CREATE UNIQUE INDEX "offers_key" ON "offers" USING btree ("merchant","route","network",lower("asset"),lower("pay_to"),"amount_atomic");
CREATE UNIQUE INDEX "orders_payment" ON "orders" USING btree ("payment_id");
CREATE INDEX "orders_payer" ON "orders" USING btree (lower("payer"),"id");
CREATE INDEX "orders_unfinished" ON "orders" USING btree ("state") WHERE state IN ('settling', 'settled', 'swapping', 'refunding', 'held');
CREATE INDEX "answers_expiry" ON "answers" USING btree ("expires_at");
CREATE UNIQUE INDEX "payments_money" ON "payments" USING btree ("network",lower("asset"),lower("payer"),"nonce");
CREATE UNIQUE INDEX "payments_log" ON "payments" USING btree ("network","transaction_hash","log_index") WHERE log_index IS NOT NULL;
CREATE UNIQUE INDEX "payments_redeem" ON "payments" USING btree ("redeem_token_hash") WHERE redeem_token_hash IS NOT NULL;
CREATE INDEX "payments_redeemable" ON "payments" USING btree ("redeem_until") WHERE redeem_until IS NOT NULL;
CREATE INDEX "payments_unfinished" ON "payments" USING btree ("state") WHERE state IN ('broadcast', 'reverted');
CREATE INDEX "payments_idempotency" ON "payments" USING btree ("merchant","route",lower("payer"),"idempotency_key") WHERE idempotency_key IS NOT NULL;
CREATE INDEX "payments_block" ON "payments" USING btree ("network","block_number") WHERE block_number IS NOT NULL;
CREATE INDEX "transaction_members_payment" ON "transaction_members" USING btree ("payment_id");
CREATE UNIQUE INDEX "transactions_included" ON "transactions" USING btree ("network",lower("relayer"),"nonce") WHERE state IN ('mined', 'failed');
CREATE INDEX "transactions_block" ON "transactions" USING btree ("network","block_number") WHERE block_number IS NOT NULL;
CREATE INDEX "transactions_unfinished" ON "transactions" USING btree ("state") WHERE state IN ('signed', 'sent');
CREATE INDEX "transactions_unpaid" ON "transactions" USING btree ("created_at") WHERE kind NOT IN ('payment', 'batch');
CREATE INDEX "entitlements_wallet" ON "entitlements" USING btree (lower("wallet"),"merchant","route","fingerprint","id") WHERE wallet IS NOT NULL;
CREATE INDEX "entitlements_expiry" ON "entitlements" USING btree ("expires_at") WHERE expires_at IS NOT NULL;
CREATE INDEX "entitlement_uses_running" ON "entitlement_uses" USING btree ("state") WHERE state = 'running';
CREATE INDEX "entitlement_uses_created" ON "entitlement_uses" USING btree ("created_at");
CREATE INDEX "channels_created" ON "channels" USING btree ("created_at","id");
CREATE INDEX "channels_open" ON "channels" USING btree ("network","created_at","id") WHERE balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL;
CREATE INDEX "refunds_created" ON "refunds" USING btree ("created_at","payment_id");
CREATE INDEX "refunds_open" ON "refunds" USING btree ("created_at","payment_id") WHERE paid_hash IS NULL;
CREATE INDEX "webhooks_due" ON "webhooks" USING btree ("endpoint","due_at") WHERE state = 'waiting';
CREATE INDEX "webhooks_subject" ON "webhooks" USING btree ("endpoint","subject","seq") WHERE state = 'waiting';
CREATE INDEX "webhooks_ended" ON "webhooks" USING btree ("endpoint","ended_at") WHERE ended_at IS NOT NULL;

-- What several gateways share, and what SQLite has without a column. The columns come last and may be
-- NULL, so that rows of the tables of both databases can be inserted here.
ALTER TABLE "payments" ADD COLUMN "delivering_by" uuid;
ALTER TABLE "payments" ADD COLUMN "answering_by" uuid;
-- The order in which rows were written, which is the rowid of SQLite.
ALTER TABLE "transactions" ADD COLUMN "epoch" bigint;
ALTER TABLE "transactions" ADD COLUMN "seq" bigint GENERATED BY DEFAULT AS IDENTITY;

-- The buyer's own key stands for one purchase. A claim in memory decides it in one process only.
CREATE UNIQUE INDEX "payments_key" ON "payments" ("merchant", "route", lower("payer"), "idempotency_key")
WHERE idempotency_key IS NOT NULL AND state <> 'expired';

CREATE TABLE "gateways" (
  "id" uuid PRIMARY KEY,
  "host" text NOT NULL DEFAULT '',
  "version" text NOT NULL DEFAULT '',
  "config_hash" text NOT NULL DEFAULT '',
  -- JSON of the keys that all gateways must share, without the keys themselves.
  "fingerprints" jsonb NOT NULL DEFAULT '{}',
  "seen_at" timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- An owner for each relayer of a network, and for the work of the network itself (`keeper`).
CREATE TABLE "lanes" (
  "network" text COLLATE "C" NOT NULL,
  "relayer" text COLLATE "C" NOT NULL,
  "holder" uuid REFERENCES "gateways" ON DELETE SET NULL,
  "epoch" bigint NOT NULL DEFAULT 0,
  "next_nonce" bigint NOT NULL DEFAULT 0,
  PRIMARY KEY ("network", "relayer"),
  CONSTRAINT "lanes_numbers" CHECK ("epoch" >= 0 AND "next_nonce" >= 0)
);
CREATE UNIQUE INDEX "lanes_once" ON "lanes" ("network", lower("relayer"));
CREATE INDEX "lanes_holder" ON "lanes" ("holder");

-- Results of commits, until the gateway that asked has them.
CREATE TABLE "commits" (
  "id" uuid PRIMARY KEY,
  "gateway" uuid,
  "at" timestamptz NOT NULL DEFAULT clock_timestamp(),
  "result" jsonb
);

-- Sums of the grants of a UTC day that begins at `day_from` (unix ms), gas included.
CREATE TABLE "grant_days" (
  "network" text COLLATE "C" NOT NULL,
  "day_from" bigint NOT NULL,
  "grants" bigint NOT NULL DEFAULT 0,
  "wei" numeric NOT NULL DEFAULT 0,
  PRIMARY KEY ("network", "day_from"),
  CONSTRAINT "grant_days_sums" CHECK ("grants" >= 0 AND "wei" >= 0 AND "wei" < 'Infinity' AND scale("wei") = 0)
);

-- When all recorded failures of a payer, or of the accounts with one code, have expired (unix ms).
CREATE TABLE "payer_failures" (
  "key" text COLLATE "C" PRIMARY KEY,
  "full_at" bigint NOT NULL
);
CREATE INDEX "payer_failures_expiry" ON "payer_failures" ("full_at");

-- The gateway that forwards the request of an authorization.
ALTER TABLE "authorizations" ADD COLUMN "authorized_by" uuid;

-- The gateway that makes the answer of a use.
ALTER TABLE "entitlement_uses" ADD COLUMN "gateway" uuid;

-- The gateway whose request has reserved a voucher.
ALTER TABLE "channels" ADD COLUMN "reserved_by" uuid;

-- A payment is updated twice after its insert, and a transaction once. With room in the same page an
-- update that changes no indexed column writes no index.
ALTER TABLE "payments" SET (fillfactor = 70);
ALTER TABLE "transactions" SET (fillfactor = 80);
-- Its counters are in no index, either.
ALTER TABLE "entitlements" SET (fillfactor = 70);
-- Nor what a request reserves and is charged.
ALTER TABLE "channels" SET (fillfactor = 70);

-- What a payer has signed and not paid is summed for each new ceiling, whichever gateway asks.
CREATE INDEX "authorizations_payer_open" ON "authorizations" (lower("payer"))
WHERE state IN ('authorized', 'metered');
CREATE INDEX "authorizations_relayer_open" ON "authorizations" ("network", lower("facilitator"))
WHERE state IN ('authorized', 'metered');
CREATE INDEX "payments_payer_open" ON "payments" (lower("payer")) WHERE state = 'broadcast';

-- Refuses a change. Its message is the argument of the trigger.
CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'TP004', MESSAGE = TG_ARGV[0], CONSTRAINT = TG_NAME,
    TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

-- Money is authorized or paid once. Only the payment with the id of a sent authorization settles its
-- money. The detail is the payment's id. The lock serialises writes of the same money, because of two
-- commits that run side by side neither sees the other. Commits insert in the order of their money. The
-- lock is nearly always free, and then it needs no statement.
CREATE FUNCTION refuse_authorized_money() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  money bigint :=
    hashtextextended(NEW.network || lower(NEW.asset) || lower(NEW.payer) || NEW.nonce, 1);
BEGIN
  IF NOT pg_try_advisory_xact_lock(money) THEN
    PERFORM pg_advisory_xact_lock(money);
  END IF;
  IF EXISTS (
    SELECT 1 FROM authorizations AS a
    WHERE a.network = NEW.network AND lower(a.asset) = lower(NEW.asset)
      AND lower(a.payer) = lower(NEW.payer) AND a.nonce = NEW.nonce
      AND NOT (a.id = NEW.id AND a.state = 'sent' AND a.charge_atomic = NEW.amount_atomic)
  ) THEN
    RAISE EXCEPTION USING ERRCODE = 'TP003', MESSAGE = 'money-authorized', CONSTRAINT = TG_NAME,
      DETAIL = NEW.id, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER payments_authorized BEFORE INSERT ON "payments"
FOR EACH ROW EXECUTE FUNCTION refuse_authorized_money();

CREATE FUNCTION refuse_paid_money() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(
    hashtextextended(NEW.network || lower(NEW.asset) || lower(NEW.payer) || NEW.nonce, 1));
  IF EXISTS (
    SELECT 1 FROM payments AS p
    WHERE p.network = NEW.network AND lower(p.asset) = lower(NEW.asset)
      AND lower(p.payer) = lower(NEW.payer) AND p.nonce = NEW.nonce
  ) THEN
    RAISE EXCEPTION USING ERRCODE = 'TP003', MESSAGE = 'money-paid', CONSTRAINT = TG_NAME,
      DETAIL = NEW.id, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER authorizations_paid BEFORE INSERT ON "authorizations"
FOR EACH ROW EXECUTE FUNCTION refuse_paid_money();

CREATE TRIGGER authorizations_transitions BEFORE UPDATE OF "state" ON "authorizations"
FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
  ('authorized', 'metered'),
  ('authorized', 'void'),
  ('metered', 'sent'),
  ('metered', 'failed')
))
EXECUTE FUNCTION forbid_change('an authorization does not change its state like that');
CREATE TRIGGER authorizations_agreed BEFORE UPDATE ON "authorizations"
FOR EACH ROW WHEN (
  (OLD.network, lower(OLD.asset), lower(OLD.payer), lower(OLD.payee), OLD.ceiling_atomic, lower(OLD.facilitator), OLD.nonce, OLD.valid_after, OLD.valid_before, OLD.signature)
  IS DISTINCT FROM (NEW.network, lower(NEW.asset), lower(NEW.payer), lower(NEW.payee), NEW.ceiling_atomic, lower(NEW.facilitator), NEW.nonce, NEW.valid_after, NEW.valid_before, NEW.signature)
  OR (OLD.charge_atomic IS NOT NULL AND NEW.charge_atomic IS DISTINCT FROM OLD.charge_atomic)
)
EXECUTE FUNCTION forbid_change('what was authorized and charged does not change');
CREATE TRIGGER authorizations_kept BEFORE DELETE ON "authorizations"
FOR EACH ROW EXECUTE FUNCTION forbid_change('an authorization is never deleted');

-- What makes a channel does not change, and what was charged does not fall.
CREATE TRIGGER channels_agreed BEFORE UPDATE OF "id", "network", "payer", "payer_authorizer", "receiver", "receiver_authorizer", "token", "withdraw_delay", "salt", "created_at" ON "channels"
FOR EACH ROW WHEN (
  (OLD.id, OLD.network, lower(OLD.payer), lower(OLD.payer_authorizer), lower(OLD.receiver), lower(OLD.receiver_authorizer), lower(OLD.token), OLD.withdraw_delay, OLD.salt, OLD.created_at)
  IS DISTINCT FROM (NEW.id, NEW.network, lower(NEW.payer), lower(NEW.payer_authorizer), lower(NEW.receiver), lower(NEW.receiver_authorizer), lower(NEW.token), NEW.withdraw_delay, NEW.salt, NEW.created_at)
)
EXECUTE FUNCTION forbid_change('what makes a channel does not change');
CREATE TRIGGER channels_charged BEFORE UPDATE OF "charged_atomic" ON "channels"
FOR EACH ROW WHEN (
  length(NEW.charged_atomic) < length(OLD.charged_atomic)
  OR (length(NEW.charged_atomic) = length(OLD.charged_atomic) AND NEW.charged_atomic < OLD.charged_atomic)
)
EXECUTE FUNCTION forbid_change('what a channel was charged does not fall');
CREATE TRIGGER channels_kept BEFORE DELETE ON "channels"
FOR EACH ROW EXECUTE FUNCTION forbid_change('a channel is never deleted');

-- The account of a refund is that of all its attempts, because its nonce lets the money move once.
CREATE TRIGGER refunds_agreed BEFORE UPDATE ON "refunds"
FOR EACH ROW WHEN (
  (OLD.payment_id, lower(OLD.account), OLD.amount_atomic, OLD.reason, OLD.created_at)
  IS DISTINCT FROM (NEW.payment_id, lower(NEW.account), NEW.amount_atomic, NEW.reason, NEW.created_at)
  OR NEW.attempts < OLD.attempts
)
EXECUTE FUNCTION forbid_change('what a refund was agreed on does not change');
CREATE TRIGGER refunds_kept BEFORE DELETE ON "refunds"
FOR EACH ROW EXECUTE FUNCTION forbid_change('a refund is never deleted');

-- A transaction of ours may be mined after its order had failed: the desk has the money then.
CREATE TRIGGER orders_transitions BEFORE UPDATE OF "state" ON "orders"
FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
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
))
EXECUTE FUNCTION forbid_change('an order does not change its state like that');
CREATE TRIGGER orders_agreed BEFORE UPDATE ON "orders"
FOR EACH ROW WHEN (
  (OLD.id, OLD.payment_id, OLD.network, OLD.symbol, lower(OLD.token), lower(OLD.pool), OLD.pool_fee, lower(OLD.payer), lower(OLD.recipient), OLD.usdg_atomic, OLD.total_atomic, OLD.quoted_atomic, OLD.floor_atomic, OLD.created_at)
  IS DISTINCT FROM (NEW.id, NEW.payment_id, NEW.network, NEW.symbol, lower(NEW.token), lower(NEW.pool), NEW.pool_fee, lower(NEW.payer), lower(NEW.recipient), NEW.usdg_atomic, NEW.total_atomic, NEW.quoted_atomic, NEW.floor_atomic, NEW.created_at)
)
EXECUTE FUNCTION forbid_change('what an order was agreed on does not change');
CREATE TRIGGER orders_swapped_once BEFORE UPDATE OF "swap_tx" ON "orders"
FOR EACH ROW WHEN (OLD.swap_tx IS NOT NULL AND NEW.swap_tx IS NULL)
EXECUTE FUNCTION forbid_change('a swap that was written is not forgotten');
CREATE TRIGGER orders_swap_not_refunded BEFORE UPDATE OF "state" ON "orders"
FOR EACH ROW WHEN (OLD.state = 'held' AND NEW.state = 'refunding' AND OLD.refund_reason IS NULL)
EXECUTE FUNCTION forbid_change('a swap that succeeded is not refunded');
CREATE TRIGGER orders_kept BEFORE DELETE ON "orders"
FOR EACH ROW EXECUTE FUNCTION forbid_change('an order is never deleted');

-- A foreign key ignores no letter case. Grants are never deleted.
CREATE FUNCTION assert_granted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM grants AS g
  WHERE g.network = NEW.network AND lower(g.address) = lower(NEW.address) FOR KEY SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation', CONSTRAINT = TG_NAME,
      MESSAGE = 'a top-up needs a grant', TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER grant_top_ups_granted BEFORE INSERT ON "grant_top_ups"
FOR EACH ROW EXECUTE FUNCTION assert_granted();

-- The CHECKs of the tables that every payment changes are functions. PostgreSQL parses and compiles all
-- CHECKs of a table at each statement that writes to it, 0.3 ms for payments, and keeps the compiled
-- expressions of a function for the session. A function reports a broken rule by its name, like a CHECK.
-- It prepares each expression again in each transaction, and a match with a regular expression takes as
-- long as ten comparisons. So a row that is in order, as nearly all are, is found so by one condition that
-- matches texts of the same digits together; only another one goes through the rules by name.
-- Rules of columns that never change are in a trigger, so that an update of others does not look at them.
-- A migration that adds or changes a rule of these tables replaces its function.
CREATE FUNCTION payments_rules(fresh payments) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text;
BEGIN
  IF fresh.state IN ('broadcast', 'confirmed', 'reverted', 'expired')
    AND fresh.delivery IN ('none', 'delivering', 'delivered')
    AND num_nonnulls(fresh.log_index, fresh.block_number, fresh.confirmed_at)
      = 3 * (fresh.state = 'confirmed')::int - 2 * (fresh.method = 'channel')::int
    AND fresh.attempts >= (fresh.delivery <> 'none')::int
    AND (fresh.delivery = 'delivered') = (fresh.delivered_at IS NOT NULL)
    AND num_nulls(fresh.redeem_token_hash, fresh.redeem_until) <> 1
    AND length(fresh.transaction_hash) = 66 AND fresh.transaction_hash ~ '^0x[0-9a-f]*$'
  THEN
    RETURN true;
  END IF;
  broken := CASE
    WHEN ((fresh.attempts >= 0) AND ((fresh.delivery = 'none') OR (fresh.attempts > 0)))
      IS FALSE THEN 'payments_attempts'
    WHEN (((fresh.state = 'confirmed' AND fresh.method <> 'channel') = (fresh.log_index IS NOT NULL)) AND
      ((fresh.log_index IS NULL) = (fresh.block_number IS NULL)) AND ((fresh.state = 'confirmed')
      = (fresh.confirmed_at IS NOT NULL))) IS FALSE THEN 'payments_confirmed'
    WHEN (fresh.method <> 'channel' OR fresh.state = 'confirmed') IS FALSE THEN 'payments_channel'
    WHEN ((fresh.delivery = 'delivered') = (fresh.delivered_at IS NOT NULL))
      IS FALSE THEN 'payments_delivered'
    WHEN (fresh.delivery IN ('none', 'delivering', 'delivered')) IS FALSE THEN 'payments_delivery'
    WHEN ((fresh.bound IN (false, true)) AND (fresh.truncated IN (false, true)) AND (fresh.answered IN
      (false, true))) IS FALSE THEN 'payments_flags'
    WHEN ((fresh.redeem_token_hash IS NULL) = (fresh.redeem_until IS NULL))
      IS FALSE THEN 'payments_redeemable'
    WHEN (fresh.state IN ('broadcast', 'confirmed', 'reverted', 'expired'))
      IS FALSE THEN 'payments_state'
    WHEN ((fresh.transaction_hash ~ '^0x[0-9a-f]*$') AND (length(fresh.transaction_hash) = 66))
      IS FALSE THEN 'payments_transaction'
  END;
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "payments" ADD CONSTRAINT "payments_rules" CHECK (payments_rules("payments".*));

-- The rules of columns that never change, by name.
CREATE FUNCTION payments_fixed_rules(fresh payments) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.asset ~ '^0x[0-9a-fA-F]*$') AND (length(fresh.asset) = 42) AND (fresh.payer ~
      '^0x[0-9a-fA-F]*$') AND (length(fresh.payer) = 42) AND (fresh.payee ~ '^0x[0-9a-fA-F]*$') AND
      (length(fresh.payee) = 42)) IS FALSE THEN 'payments_addresses'
    WHEN ((fresh.amount_atomic ~ '^(0|[1-9][0-9]*)$') AND (fresh.amount_atomic <> '0'))
      IS FALSE THEN 'payments_amount'
    WHEN ((fresh.ceiling_atomic IS NULL) OR ((fresh.ceiling_atomic ~ '^[1-9][0-9]*$') AND (fresh.method =
      'permit2') AND (fresh.protocol = 'x402') AND ((length(fresh.amount_atomic) <
      length(fresh.ceiling_atomic)) OR ((length(fresh.amount_atomic) = length(fresh.ceiling_atomic)) AND
      (fresh.amount_atomic <= fresh.ceiling_atomic))))) IS FALSE THEN 'payments_ceiling'
    WHEN ((fresh.credential_hash IS NULL) OR ((fresh.protocol = 'x402') AND (fresh.credential_hash ~
      '^[0-9a-f]*$') AND (length(fresh.credential_hash) = 64))) IS FALSE THEN 'payments_credential'
    WHEN (((fresh.facilitator IS NULL) = (fresh.ceiling_atomic IS NULL)) AND ((fresh.facilitator IS NULL) OR
      (fresh.facilitator ~ '^0x[0-9a-fA-F]*$' AND length(fresh.facilitator) = 42)))
      IS FALSE THEN 'payments_facilitator'
    WHEN (fresh.method <> 'channel' OR (fresh.product = 'gateway' AND fresh.protocol = 'x402'))
      IS FALSE THEN 'payments_channel'
    WHEN (fresh.method IN ('eip3009', 'permit2', 'channel')) IS FALSE THEN 'payments_method'
    WHEN ((fresh.network = ('eip155:' || fresh.chain_id)) AND (fresh.chain_id > 0))
      IS FALSE THEN 'payments_network'
    WHEN ((fresh.nonce ~ '^0x[0-9a-f]*$') AND (length(fresh.nonce) = 66)) IS FALSE THEN 'payments_nonce'
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk')) IS FALSE THEN 'payments_product'
    WHEN (fresh.protocol IN ('mpp', 'x402')) IS FALSE THEN 'payments_protocol'
    WHEN ((fresh.valid_after ~ '^(0|[1-9][0-9]*)$') AND (fresh.valid_before ~ '^(0|[1-9][0-9]*)$'))
      IS FALSE THEN 'payments_window'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'payments',
    MESSAGE = format('new row for relation "payments" violates check constraint "%s"', broken);
END $$;
CREATE FUNCTION payments_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Digits without a leading zero come after '1'.
  IF length(NEW.asset) = 42 AND length(NEW.payer) = 42 AND length(NEW.payee) = 42
    AND length(NEW.nonce) = 66 AND coalesce(length(NEW.credential_hash), 64) = 64
    AND starts_with(NEW.asset, '0x') AND starts_with(NEW.payer, '0x')
    AND starts_with(NEW.payee, '0x') AND starts_with(NEW.nonce, '0x')
    AND lower(substr(NEW.asset, 3) || substr(NEW.payer, 3) || substr(NEW.payee, 3))
      || substr(NEW.nonce, 3) || coalesce(NEW.credential_hash, '') ~ '^[0-9a-f]*$'
    AND NEW.amount_atomic || NEW.valid_after || NEW.valid_before ~ '^[0-9]*$'
    AND NEW.amount_atomic >= '1'
    AND (NEW.valid_after >= '1' OR NEW.valid_after = '0')
    AND (NEW.valid_before >= '1' OR NEW.valid_before = '0')
    AND num_nonnulls(NEW.ceiling_atomic, NEW.facilitator) = 0
    AND (NEW.protocol = 'x402' OR NEW.protocol = 'mpp' AND NEW.credential_hash IS NULL)
    AND (NEW.method IN ('eip3009', 'permit2') AND NEW.product IN ('gateway', 'facilitator', 'desk')
      OR NEW.method = 'channel' AND NEW.product = 'gateway' AND NEW.protocol = 'x402')
    AND NEW.chain_id > 0 AND NEW.network = 'eip155:' || NEW.chain_id
    OR payments_fixed_rules(NEW)
  THEN
    RETURN NEW;
  END IF;
END $$;
CREATE TRIGGER payments_fixed BEFORE INSERT OR UPDATE OF
  asset, payer, payee, amount_atomic, ceiling_atomic, method, protocol, credential_hash,
  facilitator, network, chain_id, nonce, product, valid_after, valid_before
ON "payments" FOR EACH ROW EXECUTE FUNCTION payments_fixed_rules();

CREATE FUNCTION transactions_rules(fresh transactions) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.cost_wei IS NULL) OR ((fresh.cost_wei ~ '^(0|[1-9][0-9]*)$') AND (fresh.state IN
      ('mined', 'failed')))) IS FALSE THEN 'transactions_cost'
    WHEN ((fresh.state IN ('mined', 'failed')) = (fresh.block_number IS NOT NULL))
      IS FALSE THEN 'transactions_included_block'
    WHEN ((fresh.state NOT IN ('sent', 'mined', 'failed')) OR (fresh.first_sent_at IS NOT NULL))
      IS FALSE THEN 'transactions_sent'
    WHEN ((fresh.state <> 'signed') OR (fresh.first_sent_at IS NULL))
      IS FALSE THEN 'transactions_signed'
    WHEN (fresh.state IN ('signed', 'sent', 'mined', 'failed', 'replaced'))
      IS FALSE THEN 'transactions_state'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'transactions',
    MESSAGE = format('new row for relation "transactions" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "transactions" ADD CONSTRAINT "transactions_rules" CHECK (transactions_rules("transactions".*));

CREATE FUNCTION transactions_fixed_rules(fresh transactions) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN ((fresh.relayer ~ '^0x[0-9a-fA-F]*$') AND (length(fresh.relayer) = 42) AND (fresh."to" ~
      '^0x[0-9a-fA-F]*$') AND (length(fresh."to") = 42)) IS FALSE THEN 'transactions_addresses'
    WHEN ((fresh.gas_limit ~ '^(0|[1-9][0-9]*)$') AND (fresh.max_fee_wei ~ '^(0|[1-9][0-9]*)$') AND
      (fresh.max_tip_wei ~ '^(0|[1-9][0-9]*)$')) IS FALSE THEN 'transactions_fees'
    WHEN ((fresh.hash ~ '^0x[0-9a-f]*$') AND (length(fresh.hash) = 66)) IS FALSE THEN 'transactions_hash'
    WHEN (fresh.kind IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'channel', 'cancel'))
      IS FALSE THEN 'transactions_kind'
    WHEN (fresh.network ~ '^eip155:[1-9]') IS FALSE THEN 'transactions_network'
    WHEN (fresh.nonce >= 0) IS FALSE THEN 'transactions_nonce_range'
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels'))
      IS FALSE THEN 'transactions_product'
    WHEN (starts_with(fresh.raw, '0x02')) IS FALSE THEN 'transactions_raw'
  END;
BEGIN
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'transactions',
    MESSAGE = format('new row for relation "transactions" violates check constraint "%s"', broken);
END $$;
CREATE FUNCTION transactions_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF length(NEW.relayer) = 42 AND length(NEW."to") = 42 AND length(NEW.hash) = 66
    AND starts_with(NEW.relayer, '0x') AND starts_with(NEW."to", '0x') AND starts_with(NEW.hash, '0x')
    AND lower(substr(NEW.relayer, 3) || substr(NEW."to", 3)) || substr(NEW.hash, 3) ~ '^[0-9a-f]*$'
    AND NEW.gas_limit || NEW.max_fee_wei || NEW.max_tip_wei ~ '^[0-9]*$'
    AND (NEW.gas_limit >= '1' OR NEW.gas_limit = '0')
    AND (NEW.max_fee_wei >= '1' OR NEW.max_fee_wei = '0')
    AND (NEW.max_tip_wei >= '1' OR NEW.max_tip_wei = '0')
    AND NEW.kind IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'channel', 'cancel')
    AND NEW.product IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')
    AND starts_with(NEW.network, 'eip155:') AND substr(NEW.network, 8) >= '1'
    AND substr(NEW.network, 8) < ':' AND NEW.nonce >= 0 AND starts_with(NEW.raw, '0x02')
    OR transactions_fixed_rules(NEW)
  THEN
    RETURN NEW;
  END IF;
END $$;
CREATE TRIGGER transactions_fixed BEFORE INSERT OR UPDATE OF
  relayer, "to", gas_limit, max_fee_wei, max_tip_wei, hash, kind, network, nonce, product, raw
ON "transactions" FOR EACH ROW EXECUTE FUNCTION transactions_fixed_rules();

CREATE FUNCTION gas_spent_rules(fresh gas_spent) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text;
BEGIN
  -- The scale of a sum is the larger one.
  IF fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels')
    AND translate(fresh.day, '#0123456789', '?##########') = '####-##-##'
    AND substr(fresh.day, 6, 1) <= '1' AND substr(fresh.day, 9, 1) <= '3'
    AND least(fresh.wei, fresh.wasted_wei) >= 0 AND greatest(fresh.wei, fresh.wasted_wei) < 'Infinity'
    AND scale(fresh.wei + fresh.wasted_wei) = 0
  THEN
    RETURN true;
  END IF;
  broken := CASE
    WHEN (fresh.product IN ('gateway', 'facilitator', 'desk', 'sponsor', 'channels'))
      IS FALSE THEN 'gas_spent_product'
    WHEN (fresh.day ~ '^[0-9]{4}-[01][0-9]-[0-3][0-9]$') IS FALSE THEN 'gas_spent_day'
    WHEN ((fresh.wei >= 0) AND (fresh.wei < 'Infinity') AND (scale(fresh.wei) = 0))
      IS FALSE THEN 'gas_spent_wei'
    WHEN ((fresh.wasted_wei >= 0) AND (fresh.wasted_wei < 'Infinity') AND (scale(fresh.wasted_wei) = 0))
      IS FALSE THEN 'gas_spent_wasted_wei'
  END;
  IF broken IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = broken, TABLE = 'gas_spent',
    MESSAGE = format('new row for relation "gas_spent" violates check constraint "%s"', broken);
END $$;
ALTER TABLE "gas_spent" ADD CONSTRAINT "gas_spent_rules" CHECK (gas_spent_rules("gas_spent".*));

-- The relayer of a lane never changes, and each launch raises its nonce.
CREATE FUNCTION lanes_fixed_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.relayer = 'keeper' OR NEW.relayer ~ '^0x[0-9a-fA-F]*$' AND length(NEW.relayer) = 42 THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = 'lanes_relayer', TABLE = 'lanes',
    MESSAGE = 'new row for relation "lanes" violates check constraint "lanes_relayer"';
END $$;
CREATE TRIGGER lanes_fixed BEFORE INSERT OR UPDATE OF relayer ON "lanes"
FOR EACH ROW EXECUTE FUNCTION lanes_fixed_rules();
