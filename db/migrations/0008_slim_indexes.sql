DROP INDEX `payments_payer`;--> statement-breakpoint
DROP INDEX `payments_redeem`;--> statement-breakpoint
DROP INDEX `payments_block`;--> statement-breakpoint
CREATE UNIQUE INDEX `payments_redeem` ON `payments` (`redeem_token_hash`) WHERE redeem_token_hash IS NOT NULL;--> statement-breakpoint
CREATE INDEX `payments_block` ON `payments` (`network`,`block_number`) WHERE block_number IS NOT NULL;--> statement-breakpoint
DROP INDEX `transactions_block`;--> statement-breakpoint
CREATE INDEX `transactions_block` ON `transactions` (`network`,`block_number`) WHERE block_number IS NOT NULL;