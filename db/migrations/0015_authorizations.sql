-- The scheme `upto`: the payer signs a ceiling, and what is charged is known after the answer.
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
	CONSTRAINT "authorizations_addresses" CHECK(length("authorizations"."asset") = 42 AND "authorizations"."asset" GLOB '0x*' AND substr("authorizations"."asset", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("authorizations"."payer") = 42 AND "authorizations"."payer" GLOB '0x*' AND substr("authorizations"."payer", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("authorizations"."payee") = 42 AND "authorizations"."payee" GLOB '0x*' AND substr("authorizations"."payee", 3) NOT GLOB '*[^0-9a-fA-F]*' AND length("authorizations"."facilitator") = 42 AND "authorizations"."facilitator" GLOB '0x*' AND substr("authorizations"."facilitator", 3) NOT GLOB '*[^0-9a-fA-F]*'),
	CONSTRAINT "authorizations_ceiling" CHECK(typeof("authorizations"."ceiling_atomic") = 'text' AND "authorizations"."ceiling_atomic" <> '' AND "authorizations"."ceiling_atomic" NOT GLOB '*[^0-9]*' AND ("authorizations"."ceiling_atomic" = '0' OR "authorizations"."ceiling_atomic" NOT GLOB '0*') AND "authorizations"."ceiling_atomic" <> '0'),
	CONSTRAINT "authorizations_nonce" CHECK(length("authorizations"."nonce") = 66 AND "authorizations"."nonce" GLOB '0x*' AND substr("authorizations"."nonce", 3) NOT GLOB '*[^0-9a-f]*'),
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
--> statement-breakpoint
CREATE INDEX `authorizations_open` ON `authorizations` (`state`) WHERE state IN ('authorized', 'metered');--> statement-breakpoint
CREATE INDEX `authorizations_failed` ON `authorizations` (`payer`,`failed_at`) WHERE failed_at IS NOT NULL;--> statement-breakpoint
CREATE INDEX `authorizations_idempotency` ON `authorizations` (`merchant`,`route`,`payer`,`idempotency_key`) WHERE idempotency_key IS NOT NULL;--> statement-breakpoint
CREATE UNIQUE INDEX `authorizations_money` ON `authorizations` (`network`,`asset`,`payer`,`nonce`);--> statement-breakpoint
ALTER TABLE `payments` ADD `ceiling_atomic` text CHECK (`ceiling_atomic` IS NULL OR (typeof(`ceiling_atomic`) = 'text' AND `ceiling_atomic` NOT GLOB '*[^0-9]*' AND `ceiling_atomic` NOT GLOB '0*' AND `method` = 'permit2' AND `protocol` = 'x402' AND (length(`amount_atomic`) < length(`ceiling_atomic`) OR (length(`amount_atomic`) = length(`ceiling_atomic`) AND `amount_atomic` <= `ceiling_atomic`))));--> statement-breakpoint
ALTER TABLE `payments` ADD `facilitator` text COLLATE NOCASE CHECK ((`facilitator` IS NULL) = (`ceiling_atomic` IS NULL) AND (`facilitator` IS NULL OR (length(`facilitator`) = 42 AND `facilitator` GLOB '0x*' AND substr(`facilitator`, 3) NOT GLOB '*[^0-9a-fA-F]*')));--> statement-breakpoint
-- Money is authorized or paid once. Only the payment with the id of a sent authorization settles its money.
CREATE TRIGGER `payments_authorized` BEFORE INSERT ON `payments`
WHEN EXISTS (SELECT 1 FROM `authorizations` AS a WHERE a.`network` = NEW.`network` AND a.`asset` = NEW.`asset` AND a.`payer` = NEW.`payer` AND a.`nonce` = NEW.`nonce` AND NOT (a.`id` = NEW.`id` AND a.`state` = 'sent' AND a.`charge_atomic` = NEW.`amount_atomic`))
BEGIN
	SELECT RAISE(ABORT, 'money-authorized');
END;--> statement-breakpoint
CREATE TRIGGER `authorizations_paid` BEFORE INSERT ON `authorizations`
WHEN EXISTS (SELECT 1 FROM `payments` AS p WHERE p.`network` = NEW.`network` AND p.`asset` = NEW.`asset` AND p.`payer` = NEW.`payer` AND p.`nonce` = NEW.`nonce`)
BEGIN
	SELECT RAISE(ABORT, 'money-paid');
END;--> statement-breakpoint
CREATE TRIGGER `authorizations_transitions` BEFORE UPDATE OF `state` ON `authorizations`
WHEN old.state <> new.state AND (old.state, new.state) NOT IN (VALUES
	('authorized', 'metered'),
	('authorized', 'void'),
	('metered', 'sent'),
	('metered', 'failed')
)
BEGIN
	SELECT RAISE(ABORT, 'an authorization does not change its state like that');
END;--> statement-breakpoint
CREATE TRIGGER `authorizations_agreed` BEFORE UPDATE ON `authorizations`
WHEN (old.network, old.asset, old.payer, old.payee, old.ceiling_atomic, old.facilitator, old.nonce, old.valid_after, old.valid_before, old.signature)
	IS NOT (new.network, new.asset, new.payer, new.payee, new.ceiling_atomic, new.facilitator, new.nonce, new.valid_after, new.valid_before, new.signature)
	OR (old.charge_atomic IS NOT NULL AND new.charge_atomic IS NOT old.charge_atomic)
BEGIN
	SELECT RAISE(ABORT, 'what was authorized and charged does not change');
END;--> statement-breakpoint
CREATE TRIGGER `authorizations_kept` BEFORE DELETE ON `authorizations`
BEGIN
	SELECT RAISE(ABORT, 'an authorization is never deleted');
END;
