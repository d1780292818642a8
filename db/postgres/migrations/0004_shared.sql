-- What a payer has signed and not paid is summed for each new ceiling, whichever gateway asks.
CREATE INDEX "authorizations_payer_open" ON "authorizations" (lower("payer"))
WHERE state IN ('authorized', 'metered');
CREATE INDEX "authorizations_relayer_open" ON "authorizations" ("network", lower("facilitator"))
WHERE state IN ('authorized', 'metered');
CREATE INDEX "payments_payer_open" ON "payments" (lower("payer")) WHERE state = 'broadcast';

-- Results of gateways that are gone are found by their age.
CREATE INDEX "commits_at" ON "commits" ("at");
