ALTER TABLE `payments` ADD `nonce_used` integer DEFAULT false NOT NULL;
