-- What began an x402 payment: the chain publishes all that was signed, but not the bytes that were sent.
-- Payments of before have none, and no header proves to be theirs.
ALTER TABLE `payments` ADD `credential_hash` text CHECK (`credential_hash` IS NULL OR (`protocol` = 'x402' AND length(`credential_hash`) = 64 AND `credential_hash` NOT GLOB '*[^0-9a-f]*'));
