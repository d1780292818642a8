import type { Family } from '../../src/http/metrics'
import { type EventText, events, type Level, type Name } from '../../src/log/Event'
import { line } from './api-reference'

/** What the values of a label are. A label without a row here fails the test of the page. */
export const labelMeanings: Readonly<Record<string, string>> = {
  version: 'version of the program, or `unknown`',
  network: 'CAIP-2 id of a network',
  merchant: 'slug of a merchant',
  client: 'kind of a client, by its `User-Agent` and protocol: a closed set',
  step: '`asked` (402 without a credential), `tried`, `refused`, `paid` or `free` (by an entitlement)',
  kind: 'kind of an entitlement: `again`, `pass` or `trial`',
  product:
    '`gateway`, `facilitator`, `desk`, `sponsor` or `channels` (deposits and refunds of [channels](channels.md))',
  relayer: 'address of a relayer',
  protocol: '`mpp` or `x402`',
  method: 'JSON-RPC method',
  operation: '`verify`, `settle` or `supported`',
  answer: 'kind of the answer, or the code of a problem',
  outcome: 'how it ended: see below',
  reason: 'why; numbers are `N`',
  result: 'how an attempt at a webhook, or its message, ended: see below',
  endpoint: 'id of a webhook, as in the log events `webhook-...`',
  state: 'state of an order: [stocks.md](stocks.md), or of a refund: [refunds.md](refunds.md)',
  code: 'error code of SQLite, or `DATABASE_GONE`',
  standby: '`none`, `async`, `sync` or `unknown` (without the role pg_monitor)',
}

const order: readonly Level[] = ['error', 'warn', 'info']

/** The text of docs/metrics.md for the metrics of a running gateway. */
export function renderMetrics(families: readonly Family[]): string {
  const metrics = families.map(({ name, type, labels, help }) =>
    line([`\`${name}\``, type, labels.map((label) => `\`${label}\``).join(', '), help]),
  )
  const used = new Set(families.flatMap(({ labels }) => labels))
  const labels = [...used]
    .toSorted()
    .map((label) => line([`\`${label}\``, labelMeanings[label] ?? '?']))
  const listed = (Object.entries(events) as [Name, EventText][]).toSorted(
    ([a, one], [b, other]) =>
      order.indexOf(one.level) - order.indexOf(other.level) || (a < b ? -1 : 1),
  )
  const rows = listed.map(([name, text]) => line([`\`${name}\``, text.level, text.meaning]))
  return `# Metrics and log events

With this page you can choose what to watch, and look up a line of the log. It is written by
\`bun run docs\` from what a gateway registers and from \`src/log\`.

\`GET /metrics\` is the text format of Prometheus. [deploy/prometheus/alerts.yaml](../deploy/prometheus/alerts.yaml)
has alert rules, and [deploy/grafana/dashboard.json](../deploy/grafana/dashboard.json) a dashboard.
[operate.md](operate.md) says how to use them.

## Metrics

| metric | type | labels | meaning |
|---|---|---|---|
${metrics.join('\n')}

| label | values |
|---|---|
${labels.join('\n')}

- \`outcome\` of \`turnpike_payments_total\`: \`confirmed\`, \`pending\` (not in time), \`reverted\` (failed on
  chain), \`refused\` (simulation), \`dead\` (can no longer pay), \`unavailable\` (network or relayer).
- \`outcome\` of \`turnpike_deliveries_total\`: \`delivered\`, \`undelivered\`, \`truncated\`. \`delivered\` also
  counts a stream at its first byte; if it is cut later, \`truncated\` counts it again.
- \`outcome\` of \`turnpike_charges_total\`: \`metered\`, \`void\` (nothing), \`failed\` (by the payer), \`lost\` (its
  time ended).
- \`outcome\` of \`turnpike_entitlement_uses_total\`: \`delivered\`, \`failed\` (given back).
- \`result\` of \`turnpike_webhooks_total\`: \`delivered\`, \`retried\` (an attempt that another one follows),
  \`expired\`, \`dropped\`, \`gone\`, \`removed\`: [webhooks.md](webhooks.md#when-messages-do-not-arrive).
- A label has at most 1,000 values; further ones share \`other\`. A reason that ended is 0.

## Log events

The log is one JSON line per event on stdout, with \`time\`, \`level\`, \`event\`, often \`requestId\` and
further fields; on a terminal it is text. Credentials, signatures and secrets are never in it. An
\`error\` needs the operator, a \`warn\` may: [troubleshooting.md](troubleshooting.md#log-events) says what
to do.

| event | level | meaning |
|---|---|---|
${rows.join('\n')}
`
}
