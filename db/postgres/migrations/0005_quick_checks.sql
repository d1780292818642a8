-- The same rules for texts of hex digits, in a form that the server evaluates in a tenth of the time.
ALTER TABLE "authorizations" DROP CONSTRAINT "authorizations_addresses";--> statement-breakpoint
ALTER TABLE "authorizations" DROP CONSTRAINT "authorizations_nonce";--> statement-breakpoint
ALTER TABLE "assets" DROP CONSTRAINT "assets_address";--> statement-breakpoint
ALTER TABLE "own_accounts" DROP CONSTRAINT "own_accounts_address";--> statement-breakpoint
ALTER TABLE "grant_top_ups" DROP CONSTRAINT "grant_top_ups_transaction";--> statement-breakpoint
ALTER TABLE "grants" DROP CONSTRAINT "grants_addresses";--> statement-breakpoint
ALTER TABLE "grants" DROP CONSTRAINT "grants_transaction";--> statement-breakpoint
ALTER TABLE "grants" DROP CONSTRAINT "grants_approve";--> statement-breakpoint
ALTER TABLE "jobs" DROP CONSTRAINT "jobs_addresses";--> statement-breakpoint
ALTER TABLE "jobs" DROP CONSTRAINT "jobs_transaction";--> statement-breakpoint
ALTER TABLE "offers" DROP CONSTRAINT "offers_addresses";--> statement-breakpoint
ALTER TABLE "offers" DROP CONSTRAINT "offers_payee";--> statement-breakpoint
ALTER TABLE "orders" DROP CONSTRAINT "orders_addresses";--> statement-breakpoint
ALTER TABLE "orders" DROP CONSTRAINT "orders_settlement";--> statement-breakpoint
ALTER TABLE "orders" DROP CONSTRAINT "orders_swap";--> statement-breakpoint
ALTER TABLE "orders" DROP CONSTRAINT "orders_refund";--> statement-breakpoint
ALTER TABLE "payments" DROP CONSTRAINT "payments_addresses";--> statement-breakpoint
ALTER TABLE "payments" DROP CONSTRAINT "payments_nonce";--> statement-breakpoint
ALTER TABLE "payments" DROP CONSTRAINT "payments_transaction";--> statement-breakpoint
ALTER TABLE "payments" DROP CONSTRAINT "payments_credential";--> statement-breakpoint
ALTER TABLE "transactions" DROP CONSTRAINT "transactions_hash";--> statement-breakpoint
ALTER TABLE "transactions" DROP CONSTRAINT "transactions_addresses";--> statement-breakpoint
ALTER TABLE "authorizations" ADD CONSTRAINT "authorizations_addresses" CHECK ("authorizations"."asset" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."asset") = 42 AND "authorizations"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."payer") = 42 AND "authorizations"."payee" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."payee") = 42 AND "authorizations"."facilitator" ~ '^0x[0-9a-fA-F]*$' AND length("authorizations"."facilitator") = 42);--> statement-breakpoint
ALTER TABLE "authorizations" ADD CONSTRAINT "authorizations_nonce" CHECK ("authorizations"."nonce" ~ '^0x[0-9a-f]*$' AND length("authorizations"."nonce") = 66);--> statement-breakpoint
ALTER TABLE "assets" ADD CONSTRAINT "assets_address" CHECK ("assets"."address" ~ '^0x[0-9a-fA-F]*$' AND length("assets"."address") = 42);--> statement-breakpoint
ALTER TABLE "own_accounts" ADD CONSTRAINT "own_accounts_address" CHECK ("own_accounts"."address" ~ '^0x[0-9a-fA-F]*$' AND length("own_accounts"."address") = 42);--> statement-breakpoint
ALTER TABLE "grant_top_ups" ADD CONSTRAINT "grant_top_ups_transaction" CHECK ("grant_top_ups"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("grant_top_ups"."transaction_hash") = 66);--> statement-breakpoint
ALTER TABLE "grants" ADD CONSTRAINT "grants_addresses" CHECK ("grants"."address" ~ '^0x[0-9a-fA-F]*$' AND length("grants"."address") = 42 AND "grants"."token" ~ '^0x[0-9a-fA-F]*$' AND length("grants"."token") = 42);--> statement-breakpoint
ALTER TABLE "grants" ADD CONSTRAINT "grants_transaction" CHECK ("grants"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("grants"."transaction_hash") = 66);--> statement-breakpoint
ALTER TABLE "grants" ADD CONSTRAINT "grants_approve" CHECK (("grants"."kind" = 'approval') = ("grants"."approve_hash" IS NOT NULL) AND ("grants"."approve_hash" IS NULL OR ("grants"."approve_hash" ~ '^0x[0-9a-f]*$' AND length("grants"."approve_hash") = 66)));--> statement-breakpoint
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_addresses" CHECK ("jobs"."relayer" ~ '^0x[0-9a-fA-F]*$' AND length("jobs"."relayer") = 42 AND "jobs"."to" ~ '^0x[0-9a-fA-F]*$' AND length("jobs"."to") = 42);--> statement-breakpoint
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_transaction" CHECK ("jobs"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("jobs"."transaction_hash") = 66);--> statement-breakpoint
ALTER TABLE "offers" ADD CONSTRAINT "offers_addresses" CHECK ("offers"."asset" ~ '^0x[0-9a-fA-F]*$' AND length("offers"."asset") = 42);--> statement-breakpoint
ALTER TABLE "offers" ADD CONSTRAINT "offers_payee" CHECK ("offers"."pay_to" ~ '^0x[0-9a-fA-F]*$' AND length("offers"."pay_to") = 42);--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_addresses" CHECK ("orders"."token" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."token") = 42 AND "orders"."pool" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."pool") = 42 AND "orders"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."payer") = 42 AND "orders"."recipient" ~ '^0x[0-9a-fA-F]*$' AND length("orders"."recipient") = 42);--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_settlement" CHECK ("orders"."settlement_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."settlement_tx") = 66);--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_swap" CHECK ("orders"."swap_tx" IS NULL OR "orders"."swap_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."swap_tx") = 66);--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_refund" CHECK ("orders"."refund_tx" IS NULL OR "orders"."refund_tx" ~ '^0x[0-9a-f]*$' AND length("orders"."refund_tx") = 66);--> statement-breakpoint
ALTER TABLE "payments" ADD CONSTRAINT "payments_addresses" CHECK ("payments"."asset" ~ '^0x[0-9a-fA-F]*$' AND length("payments"."asset") = 42 AND "payments"."payer" ~ '^0x[0-9a-fA-F]*$' AND length("payments"."payer") = 42 AND "payments"."payee" ~ '^0x[0-9a-fA-F]*$' AND length("payments"."payee") = 42);--> statement-breakpoint
ALTER TABLE "payments" ADD CONSTRAINT "payments_nonce" CHECK ("payments"."nonce" ~ '^0x[0-9a-f]*$' AND length("payments"."nonce") = 66);--> statement-breakpoint
ALTER TABLE "payments" ADD CONSTRAINT "payments_transaction" CHECK ("payments"."transaction_hash" ~ '^0x[0-9a-f]*$' AND length("payments"."transaction_hash") = 66);--> statement-breakpoint
ALTER TABLE "payments" ADD CONSTRAINT "payments_credential" CHECK ("payments"."credential_hash" IS NULL OR ("payments"."protocol" = 'x402' AND "payments"."credential_hash" ~ '^[0-9a-f]*$' AND length("payments"."credential_hash") = 64));--> statement-breakpoint
ALTER TABLE "transactions" ADD CONSTRAINT "transactions_hash" CHECK ("transactions"."hash" ~ '^0x[0-9a-f]*$' AND length("transactions"."hash") = 66);--> statement-breakpoint
ALTER TABLE "transactions" ADD CONSTRAINT "transactions_addresses" CHECK ("transactions"."relayer" ~ '^0x[0-9a-fA-F]*$' AND length("transactions"."relayer") = 42 AND "transactions"."to" ~ '^0x[0-9a-fA-F]*$' AND length("transactions"."to") = 42);