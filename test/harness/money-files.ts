import { basename, join } from 'node:path'
import { Glob } from 'bun'

/**
 * Every test file that opens a ledger, and where it runs; test/db/money-files.test.ts says when one is
 * missing. Names are without `.test.ts`.
 */

const root = join(import.meta.dir, '..')

/** The path of each test file by its name. */
export const paths: ReadonlyMap<string, string> = new Map(
  [...new Glob('**/*.test.ts').scanSync(root)].map((path) => [
    basename(path, '.test.ts'),
    join(root, path),
  ]),
)

/** On SQLite with the others, and over PostgreSQL in each run of `bun run test:postgres`. */
export const onBoth: readonly string[] = [
  ...['attacks-crash', 'attacks-payment'],
  ...[
    'channel',
    'channel-claims',
    'channel-deposits',
    'channel-refunds',
    'channel-vouchers',
    'channels',
  ],
  ...['decisions-budgets', 'decisions-ledger', 'decisions-payment'],
  ...['decisions-recovery', 'decisions-sending', 'delivery-pause', 'external-settlement'],
  ...['facilitator-attacks', 'facilitator-joins', 'facilitator-upto'],
  ...['idempotency', 'late-ledger', 'lost-answers', 'paying', 'paying-elsewhere', 'pending'],
  ...['redeem', 'refunds'],
  ...['settlement', 'settlement-batch', 'settlement-budgets', 'settlement-cancelled'],
  ...['settlement-deliver-on-confirm', 'settlement-desk', 'settlement-faults', 'settlement-jobs'],
  ...['settlement-products', 'settlement-recovery', 'settlement-reorg', 'settlement-shared-code'],
  ...['settlement-signers', 'settlement-waiting'],
  ...['sponsor-ledger', 'sponsor-topup', 'stock-buy', 'stock-crash', 'stock-edges', 'stock-once'],
  ...['upto-crash', 'upto-failures', 'upto-ledger', 'upto-losses', 'uses'],
]

/**
 * The same, but over PostgreSQL only with `--all`, which takes twice as long: the functions of the
 * ledger that they call are those of the files above.
 */
export const onBothByAll: readonly string[] = [
  ...['attacks-answers', 'attacks-budget', 'attacks-chain', 'attacks-channels'],
  ...['attacks-credential', 'channel-buyers', 'channel-clients', 'channel-usage'],
  ...['attacks-entitlements', 'attacks-sign-in', 'attacks-stock'],
  ...['attacks-v1', 'x402-v1-clients'],
  ...['chain-stocks', 'clients', 'concurrency', 'edge', 'facilitator'],
  ...['facilitator-approvals', 'facilitator-channels', 'facilitator-channels-differential'],
  ...['facilitator-differential', 'facilitator-differential-upto'],
  ...['facilitator-input', 'facilitator-interop', 'facilitator-limits', 'facilitator-payees'],
  ...['facilitator-upto-void', 'gas-offers', 'meter-gateway', 'pay-upto'],
  ...['paying-checks', 'paying-problems', 'paying-stream', 'paying-unavailable', 'payment-lookup'],
  ...['pending-clients', 'refund-shop', 'refused-limit', 'sales-chain', 'second-node'],
  ...['settlement-crash', 'settlement-fees', 'settlement-heads', 'settlement-hostile'],
  ...['settlement-late-receipts', 'settlement-lies', 'settlement-metrics', 'settlement-time'],
  ...['settlement-wallets', 'sponsor', 'sponsor-approval', 'sponsor-interop', 'sponsor-pay'],
  ...['sponsor-rules', 'sponsor-wallets', 'stock-change', 'stock-faults', 'stock-sponsor'],
  ...['upto-attackers', 'upto-attacks', 'upto-calls', 'upto-documents', 'upto-gateway', 'upto-mcp'],
  ...['upto-overlap', 'upto-relayers', 'upto-stream', 'sign-in'],
]

/** Files that run on one ledger only, each with its reason. */
export const onOne: readonly { why: string; files: readonly string[] }[] = [
  {
    why: 'opens both databases itself, or is about PostgreSQL alone: every postgres-*, and these',
    files: [
      ...['channel-gateways', 'database-url', 'decisions-lanes', 'ledger-grants', 'sales'],
      ...['stock-orders', 'stock-takeover', 'stop', 'webhooks-outbox'],
    ],
  },
  {
    why: 'is about the file of SQLite: its migrations, its faults, its locks, its copies, its path',
    files: [
      ...['channel-crash', 'channel-key', 'cli', 'db', 'deploy', 'logs', 'serve-start'],
      ...['start-messages', 'storage'],
      ...['storage-faults', 'upgrade', 'webhooks-config', 'webhooks-program', 'x402-credential'],
    ],
  },
  {
    why: 'is about the memory, statements and commits of SQLite; the soaks and benchmarks count those of a server',
    files: ['ledger-cached', 'payment-costs', 'webhooks-app'],
  },
  {
    why: 'reads books that test/db/postgres-books.test.ts compares on both',
    files: ['admin-app', 'admin-browser', 'admin-ledger', 'admin-pages', 'admin-session', 'funnel'],
  },
  {
    why: 'sends messages that test/db/postgres-webhooks.test.ts compares on both',
    files: ['alerts', 'webhooks', 'webhooks-connect', 'webhooks-page'],
  },
  {
    why: 'refuses before the ledger is asked: quotes, limits, forged credentials, broken HTTP',
    files: [
      ...['attacks-challenge', 'attacks-http', 'attacks-load', 'challenge402', 'head402'],
      ...['hostile-host', 'hostile-input', 'mcp-limits', 'reload'],
    ],
  },
  {
    why: 'is about documents, pages, prices and clients; a payment in it only makes an answer',
    files: [
      ...['api-document', 'assistant', 'catalogue', 'channel-app', 'channel-pages'],
      ...['check-online', 'dashboards'],
      ...['discovery-validators', 'documents-run', 'market', 'mcp', 'mcp-http', 'mcp-wallet'],
      ...['mcp-wallet-failures', 'nginx', 'pages', 'pages-browser', 'pages-merchant', 'pay'],
      ...['pages-entitlements', 'pricing-page', 'sign-in-clients', 'wallet-attacks'],
      ...['wallet-browser'],
    ],
  },
  {
    why: 'repeats work that is not of a ledger',
    files: ['loop'],
  },
  {
    why: 'is a report of the chain, without a service',
    files: ['sponsor-farm'],
  },
]
