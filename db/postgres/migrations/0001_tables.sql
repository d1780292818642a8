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
	CONSTRAINT "authorizations_addresses" CHECK ("authorizations"."asset" ~ '^0x[0-9a-fA-F]{40}$' AND "authorizations"."payer" ~ '^0x[0-9a-fA-F]{40}$' AND "authorizations"."payee" ~ '^0x[0-9a-fA-F]{40}$' AND "authorizations"."facilitator" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "authorizations_ceiling" CHECK ("authorizations"."ceiling_atomic" ~ '^(0|[1-9][0-9]*)$' AND "authorizations"."ceiling_atomic" <> '0'),
	CONSTRAINT "authorizations_nonce" CHECK ("authorizations"."nonce" ~ '^0x[0-9a-f]{64}$'),
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
--> statement-breakpoint
CREATE TABLE "assets" (
	"network" text COLLATE "C" NOT NULL,
	"address" text COLLATE "C" /* address */ NOT NULL,
	"network_name" text COLLATE "C" NOT NULL,
	"symbol" text COLLATE "C" NOT NULL,
	"decimals" bigint NOT NULL,
	"coin_usd" text COLLATE "C" NOT NULL,
	"updated_at" bigint NOT NULL,
	CONSTRAINT "assets_address" CHECK ("assets"."address" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "assets_decimals" CHECK ("assets"."decimals" BETWEEN 0 AND 36)
);
--> statement-breakpoint
CREATE TABLE "hours" (
	"hour" bigint NOT NULL,
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"asked" bigint NOT NULL,
	"paid" bigint NOT NULL,
	"failed" bigint NOT NULL,
	CONSTRAINT "hours_hour_merchant_route_pk" PRIMARY KEY("hour","merchant","route"),
	CONSTRAINT "hours_hour" CHECK ("hours"."hour" >= 0 AND "hours"."hour" % 3600000 = 0),
	CONSTRAINT "hours_counts" CHECK ("hours"."asked" >= 0 AND "hours"."paid" >= 0 AND "hours"."failed" >= 0)
);
--> statement-breakpoint
CREATE TABLE "own_accounts" (
	"address" text COLLATE "C" /* address */ NOT NULL,
	"added_at" bigint NOT NULL,
	CONSTRAINT "own_accounts_address" CHECK ("own_accounts"."address" ~ '^0x[0-9a-fA-F]{40}$')
);
--> statement-breakpoint
CREATE TABLE "grant_top_ups" (
	"network" text COLLATE "C" NOT NULL,
	"address" text COLLATE "C" /* address */ NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	"amount_wei" text COLLATE "C" NOT NULL,
	"fee_wei" text COLLATE "C" NOT NULL,
	"created_at" bigint NOT NULL,
	CONSTRAINT "grant_top_ups_transaction" CHECK ("grant_top_ups"."transaction_hash" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "grant_top_ups_amounts" CHECK ("grant_top_ups"."amount_wei" ~ '^(0|[1-9][0-9]*)$' AND "grant_top_ups"."amount_wei" <> '0' AND "grant_top_ups"."fee_wei" ~ '^(0|[1-9][0-9]*)$')
);
--> statement-breakpoint
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
	CONSTRAINT "grants_addresses" CHECK ("grants"."address" ~ '^0x[0-9a-fA-F]{40}$' AND "grants"."token" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "grants_transaction" CHECK ("grants"."transaction_hash" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "grants_amounts" CHECK ("grants"."amount_wei" ~ '^(0|[1-9][0-9]*)$' AND "grants"."amount_wei" <> '0' AND "grants"."fee_wei" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "grants_approve" CHECK (("grants"."kind" = 'approval') = ("grants"."approve_hash" IS NOT NULL) AND ("grants"."approve_hash" IS NULL OR ("grants"."approve_hash" ~ '^0x[0-9a-f]{64}$')))
);
--> statement-breakpoint
CREATE TABLE "job_transactions" (
	"job_id" text COLLATE "C" NOT NULL,
	"transaction_hash" text COLLATE "C" NOT NULL,
	CONSTRAINT "job_transactions_transaction_hash_pk" PRIMARY KEY("transaction_hash")
);
--> statement-breakpoint
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
	CONSTRAINT "jobs_kind" CHECK ("jobs"."kind" IN ('swap', 'refund', 'grant', 'allowance')),
	CONSTRAINT "jobs_product" CHECK ("jobs"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "jobs_network" CHECK ("jobs"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "jobs_nonce" CHECK ("jobs"."nonce" >= 0),
	CONSTRAINT "jobs_addresses" CHECK ("jobs"."relayer" ~ '^0x[0-9a-fA-F]{40}$' AND "jobs"."to" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "jobs_value" CHECK ("jobs"."value_wei" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "jobs_state" CHECK ("jobs"."state" IN ('broadcast', 'confirmed', 'failed', 'replaced')),
	CONSTRAINT "jobs_transaction" CHECK ("jobs"."transaction_hash" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "jobs_included" CHECK (("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."block_number" IS NOT NULL) AND ("jobs"."state" IN ('confirmed', 'failed')) = ("jobs"."receipt" IS NOT NULL)),
	CONSTRAINT "jobs_ended" CHECK (("jobs"."state" = 'broadcast') = ("jobs"."ended_at" IS NULL)),
	CONSTRAINT "jobs_receipt" CHECK ("jobs"."receipt" IS NULL OR "jobs"."receipt"::json IS NOT NULL)
);
--> statement-breakpoint
CREATE TABLE "offers" (
	"merchant" text COLLATE "C" NOT NULL,
	"route" text COLLATE "C" NOT NULL,
	"network" text COLLATE "C" NOT NULL,
	"asset" text COLLATE "C" /* address */ NOT NULL,
	"pay_to" text COLLATE "C" /* address */ NOT NULL,
	"amount_atomic" text COLLATE "C" NOT NULL,
	"retired_at" bigint NOT NULL,
	CONSTRAINT "offers_addresses" CHECK ("offers"."asset" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "offers_payee" CHECK ("offers"."pay_to" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "offers_amount" CHECK ("offers"."amount_atomic" ~ '^(0|[1-9][0-9]*)$')
);
--> statement-breakpoint
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
	CONSTRAINT "orders_addresses" CHECK ("orders"."token" ~ '^0x[0-9a-fA-F]{40}$' AND "orders"."pool" ~ '^0x[0-9a-fA-F]{40}$' AND "orders"."payer" ~ '^0x[0-9a-fA-F]{40}$' AND "orders"."recipient" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "orders_amounts" CHECK ("orders"."usdg_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."usdg_atomic" <> '0' AND "orders"."total_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."total_atomic" <> '0' AND "orders"."quoted_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."floor_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."floor_atomic" <> '0'),
	CONSTRAINT "orders_state" CHECK ("orders"."state" IN ('settling', 'settled', 'swapping', 'delivered', 'refunding', 'refunded', 'held', 'failed')),
	CONSTRAINT "orders_settlement" CHECK ("orders"."settlement_tx" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "orders_swap" CHECK ("orders"."swap_tx" IS NULL OR "orders"."swap_tx" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "orders_refund" CHECK ("orders"."refund_tx" IS NULL OR "orders"."refund_tx" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "orders_unsent" CHECK ("orders"."state" NOT IN ('settling', 'settled', 'failed') OR ("orders"."swap_tx" IS NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_swapped" CHECK ("orders"."state" NOT IN ('swapping', 'delivered') OR ("orders"."swap_tx" IS NOT NULL AND "orders"."refund_tx" IS NULL AND "orders"."refund_reason" IS NULL)),
	CONSTRAINT "orders_delivered" CHECK (("orders"."state" = 'delivered') = ("orders"."delivered_atomic" IS NOT NULL) AND ("orders"."delivered_atomic" IS NULL OR ("orders"."delivered_atomic" ~ '^(0|[1-9][0-9]*)$' AND "orders"."delivered_atomic" <> '0'))),
	CONSTRAINT "orders_refunding" CHECK ("orders"."state" NOT IN ('refunding', 'refunded') OR "orders"."refund_reason" IS NOT NULL),
	CONSTRAINT "orders_refunded" CHECK ("orders"."state" <> 'refunded' OR ("orders"."refund_tx" IS NOT NULL AND "orders"."refund_attempts" > 0)),
	CONSTRAINT "orders_attempts" CHECK ("orders"."refund_attempts" >= 0 AND ("orders"."refund_tx" IS NULL OR ("orders"."refund_reason" IS NOT NULL AND "orders"."refund_attempts" > 0))),
	CONSTRAINT "orders_held" CHECK (("orders"."state" = 'held') = ("orders"."held_reason" IS NOT NULL)),
	CONSTRAINT "orders_retry" CHECK ("orders"."retry_at" IS NULL OR "orders"."state" = 'held'),
	CONSTRAINT "orders_settled" CHECK ("orders"."state" IN ('settling', 'failed') OR "orders"."settled_at" IS NOT NULL)
);
--> statement-breakpoint
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
--> statement-breakpoint
CREATE TABLE "gas_spent" (
	"network" text COLLATE "C" NOT NULL,
	"product" text COLLATE "C" NOT NULL,
	"day" text COLLATE "C" NOT NULL,
	"wei" numeric NOT NULL,
	"wasted_wei" numeric DEFAULT '0' NOT NULL,
	CONSTRAINT "gas_spent_network_product_day_pk" PRIMARY KEY("network","product","day"),
	CONSTRAINT "gas_spent_product" CHECK ("gas_spent"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "gas_spent_day" CHECK ("gas_spent"."day" ~ '^[0-9]{4}-[01][0-9]-[0-3][0-9]$'),
	CONSTRAINT "gas_spent_wei" CHECK ("gas_spent"."wei" >= 0 AND "gas_spent"."wei" < 'Infinity' AND scale("gas_spent"."wei") = 0),
	CONSTRAINT "gas_spent_wasted_wei" CHECK ("gas_spent"."wasted_wei" >= 0 AND "gas_spent"."wasted_wei" < 'Infinity' AND scale("gas_spent"."wasted_wei") = 0)
);
--> statement-breakpoint
CREATE TABLE "merchants" (
	"slug" text COLLATE "C" PRIMARY KEY NOT NULL,
	"title" text COLLATE "C" NOT NULL,
	"hash" text COLLATE "C" NOT NULL,
	"json" text COLLATE "C" NOT NULL,
	"updated_at" bigint NOT NULL
);
--> statement-breakpoint
CREATE TABLE "meta" (
	"key" text COLLATE "C" PRIMARY KEY NOT NULL,
	"value" text COLLATE "C" NOT NULL
);
--> statement-breakpoint
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
	"delivered_at" bigint,
	CONSTRAINT "payments_method" CHECK ("payments"."method" IN ('eip3009', 'permit2')),
	CONSTRAINT "payments_network" CHECK ("payments"."network" = 'eip155:' || "payments"."chain_id" AND "payments"."chain_id" > 0),
	CONSTRAINT "payments_addresses" CHECK ("payments"."asset" ~ '^0x[0-9a-fA-F]{40}$' AND "payments"."payer" ~ '^0x[0-9a-fA-F]{40}$' AND "payments"."payee" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "payments_amount" CHECK ("payments"."amount_atomic" ~ '^(0|[1-9][0-9]*)$' AND "payments"."amount_atomic" <> '0'),
	CONSTRAINT "payments_nonce" CHECK ("payments"."nonce" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "payments_window" CHECK ("payments"."valid_after" ~ '^(0|[1-9][0-9]*)$' AND "payments"."valid_before" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "payments_product" CHECK ("payments"."product" IN ('gateway', 'facilitator', 'desk')),
	CONSTRAINT "payments_protocol" CHECK ("payments"."protocol" IN ('mpp', 'x402')),
	CONSTRAINT "payments_state" CHECK ("payments"."state" IN ('broadcast', 'confirmed', 'reverted', 'expired')),
	CONSTRAINT "payments_transaction" CHECK ("payments"."transaction_hash" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "payments_confirmed" CHECK (("payments"."state" = 'confirmed') = ("payments"."log_index" IS NOT NULL) AND ("payments"."state" = 'confirmed') = ("payments"."block_number" IS NOT NULL) AND ("payments"."state" = 'confirmed') = ("payments"."confirmed_at" IS NOT NULL)),
	CONSTRAINT "payments_delivery" CHECK ("payments"."delivery" IN ('none', 'delivering', 'delivered')),
	CONSTRAINT "payments_attempts" CHECK ("payments"."attempts" >= 0 AND ("payments"."delivery" = 'none' OR "payments"."attempts" > 0)),
	CONSTRAINT "payments_delivered" CHECK (("payments"."delivery" = 'delivered') = ("payments"."delivered_at" IS NOT NULL)),
	CONSTRAINT "payments_redeemable" CHECK (("payments"."redeem_token_hash" IS NULL) = ("payments"."redeem_until" IS NULL)),
	CONSTRAINT "payments_credential" CHECK ("payments"."credential_hash" IS NULL OR ("payments"."protocol" = 'x402' AND "payments"."credential_hash" ~ '^[0-9a-f]{64}$')),
	CONSTRAINT "payments_flags" CHECK ("payments"."bound" IN (false, true) AND "payments"."truncated" IN (false, true) AND "payments"."answered" IN (false, true))
);
--> statement-breakpoint
CREATE TABLE "transaction_members" (
	"transaction_hash" text COLLATE "C" NOT NULL,
	"position" bigint NOT NULL,
	"payment_id" text COLLATE "C" NOT NULL,
	CONSTRAINT "transaction_members_transaction_hash_position_pk" PRIMARY KEY("transaction_hash","position"),
	CONSTRAINT "transaction_members_position" CHECK ("transaction_members"."position" >= 0)
);
--> statement-breakpoint
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
	"cost_wei" text COLLATE "C",
	CONSTRAINT "transactions_hash" CHECK ("transactions"."hash" ~ '^0x[0-9a-f]{64}$'),
	CONSTRAINT "transactions_network" CHECK ("transactions"."network" ~ '^eip155:[1-9]'),
	CONSTRAINT "transactions_nonce_range" CHECK ("transactions"."nonce" >= 0),
	CONSTRAINT "transactions_kind" CHECK ("transactions"."kind" IN ('payment', 'batch', 'swap', 'refund', 'grant', 'approve', 'cancel')),
	CONSTRAINT "transactions_product" CHECK ("transactions"."product" IN ('gateway', 'facilitator', 'desk', 'sponsor')),
	CONSTRAINT "transactions_addresses" CHECK ("transactions"."relayer" ~ '^0x[0-9a-fA-F]{40}$' AND "transactions"."to" ~ '^0x[0-9a-fA-F]{40}$'),
	CONSTRAINT "transactions_raw" CHECK ("transactions"."raw" ~ '^0x02'),
	CONSTRAINT "transactions_fees" CHECK ("transactions"."gas_limit" ~ '^(0|[1-9][0-9]*)$' AND "transactions"."max_fee_wei" ~ '^(0|[1-9][0-9]*)$' AND "transactions"."max_tip_wei" ~ '^(0|[1-9][0-9]*)$'),
	CONSTRAINT "transactions_state" CHECK ("transactions"."state" IN ('signed', 'sent', 'mined', 'failed', 'replaced')),
	CONSTRAINT "transactions_included_block" CHECK (("transactions"."state" IN ('mined', 'failed')) = ("transactions"."block_number" IS NOT NULL)),
	CONSTRAINT "transactions_sent" CHECK ("transactions"."state" NOT IN ('sent', 'mined', 'failed') OR "transactions"."first_sent_at" IS NOT NULL),
	CONSTRAINT "transactions_signed" CHECK ("transactions"."state" <> 'signed' OR "transactions"."first_sent_at" IS NULL)
);
--> statement-breakpoint
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
--> statement-breakpoint
ALTER TABLE "job_transactions" ADD CONSTRAINT "job_transactions_job_id_jobs_id_fk" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "job_transactions" ADD CONSTRAINT "job_transactions_transaction_hash_transactions_hash_fk" FOREIGN KEY ("transaction_hash") REFERENCES "transactions"("hash") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "answers" ADD CONSTRAINT "answers_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "transaction_members" ADD CONSTRAINT "transaction_members_transaction_hash_transactions_hash_fk" FOREIGN KEY ("transaction_hash") REFERENCES "transactions"("hash") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "transaction_members" ADD CONSTRAINT "transaction_members_payment_id_payments_id_fk" FOREIGN KEY ("payment_id") REFERENCES "payments"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE UNIQUE INDEX "authorizations_money" ON "authorizations" USING btree ("network",lower("asset"),lower("payer"),"nonce");--> statement-breakpoint
CREATE INDEX "authorizations_open" ON "authorizations" USING btree ("state") WHERE state IN ('authorized', 'metered');--> statement-breakpoint
CREATE INDEX "authorizations_failed" ON "authorizations" USING btree (lower("payer"),"failed_at") WHERE failed_at IS NOT NULL;--> statement-breakpoint
CREATE INDEX "authorizations_idempotency" ON "authorizations" USING btree ("merchant","route",lower("payer"),"idempotency_key") WHERE idempotency_key IS NOT NULL;--> statement-breakpoint
CREATE UNIQUE INDEX "assets_key" ON "assets" USING btree ("network",lower("address"));--> statement-breakpoint
CREATE UNIQUE INDEX "own_accounts_key" ON "own_accounts" USING btree (lower("address"));--> statement-breakpoint
CREATE UNIQUE INDEX "grant_top_ups_key" ON "grant_top_ups" USING btree ("network",lower("address"));--> statement-breakpoint
CREATE INDEX "grant_top_ups_day" ON "grant_top_ups" USING btree ("network","created_at");--> statement-breakpoint
CREATE UNIQUE INDEX "grants_key" ON "grants" USING btree ("network",lower("address"));--> statement-breakpoint
CREATE INDEX "grants_day" ON "grants" USING btree ("network","created_at");--> statement-breakpoint
CREATE INDEX "job_transactions_job" ON "job_transactions" USING btree ("job_id");--> statement-breakpoint
CREATE INDEX "jobs_unfinished" ON "jobs" USING btree ("state") WHERE state = 'broadcast';--> statement-breakpoint
CREATE UNIQUE INDEX "offers_key" ON "offers" USING btree ("merchant","route","network",lower("asset"),lower("pay_to"),"amount_atomic");--> statement-breakpoint
CREATE UNIQUE INDEX "orders_payment" ON "orders" USING btree ("payment_id");--> statement-breakpoint
CREATE INDEX "orders_payer" ON "orders" USING btree (lower("payer"),"id");--> statement-breakpoint
CREATE INDEX "orders_unfinished" ON "orders" USING btree ("state") WHERE state IN ('settling', 'settled', 'swapping', 'refunding', 'held');--> statement-breakpoint
CREATE INDEX "answers_expiry" ON "answers" USING btree ("expires_at");--> statement-breakpoint
CREATE UNIQUE INDEX "payments_money" ON "payments" USING btree ("network",lower("asset"),lower("payer"),"nonce");--> statement-breakpoint
CREATE UNIQUE INDEX "payments_log" ON "payments" USING btree ("network","transaction_hash","log_index");--> statement-breakpoint
CREATE UNIQUE INDEX "payments_redeem" ON "payments" USING btree ("redeem_token_hash") WHERE redeem_token_hash IS NOT NULL;--> statement-breakpoint
CREATE INDEX "payments_unfinished" ON "payments" USING btree ("state") WHERE state IN ('broadcast', 'reverted');--> statement-breakpoint
CREATE INDEX "payments_idempotency" ON "payments" USING btree ("merchant","route",lower("payer"),"idempotency_key") WHERE idempotency_key IS NOT NULL;--> statement-breakpoint
CREATE INDEX "payments_block" ON "payments" USING btree ("network","block_number") WHERE block_number IS NOT NULL;--> statement-breakpoint
CREATE UNIQUE INDEX "transaction_members_once" ON "transaction_members" USING btree ("transaction_hash","payment_id");--> statement-breakpoint
CREATE INDEX "transaction_members_payment" ON "transaction_members" USING btree ("payment_id");--> statement-breakpoint
CREATE UNIQUE INDEX "transactions_included" ON "transactions" USING btree ("network",lower("relayer"),"nonce") WHERE state IN ('mined', 'failed');--> statement-breakpoint
CREATE INDEX "transactions_nonce" ON "transactions" USING btree ("network",lower("relayer"),"nonce");--> statement-breakpoint
CREATE INDEX "transactions_block" ON "transactions" USING btree ("network","block_number") WHERE block_number IS NOT NULL;--> statement-breakpoint
CREATE INDEX "transactions_unfinished" ON "transactions" USING btree ("state") WHERE state IN ('signed', 'sent');--> statement-breakpoint
CREATE INDEX "transactions_unpaid" ON "transactions" USING btree ("created_at") WHERE kind NOT IN ('payment', 'batch');--> statement-breakpoint
CREATE INDEX "webhooks_due" ON "webhooks" USING btree ("endpoint","due_at") WHERE state = 'waiting';--> statement-breakpoint
CREATE INDEX "webhooks_subject" ON "webhooks" USING btree ("endpoint","subject","seq") WHERE state = 'waiting';--> statement-breakpoint
CREATE INDEX "webhooks_ended" ON "webhooks" USING btree ("endpoint","ended_at") WHERE ended_at IS NOT NULL;