-- Messages for webhooks, written in the commits of their events.
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
--> statement-breakpoint
CREATE UNIQUE INDEX `webhooks_id` ON `webhooks` (`id`);--> statement-breakpoint
CREATE INDEX `webhooks_due` ON `webhooks` (`endpoint`,`due_at`) WHERE state = 'waiting';--> statement-breakpoint
CREATE INDEX `webhooks_subject` ON `webhooks` (`endpoint`,`subject`,`seq`) WHERE state = 'waiting';--> statement-breakpoint
CREATE INDEX `webhooks_ended` ON `webhooks` (`endpoint`,`ended_at`) WHERE ended_at IS NOT NULL;