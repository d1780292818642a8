CREATE INDEX `payments_block` ON `payments` (`network`,`block_number`);--> statement-breakpoint
CREATE INDEX `transactions_block` ON `transactions` (`network`,`block_number`);