/** `warn` may need the operator, `error` does. */
export type Level = 'info' | 'warn' | 'error'

/** An event of the log; docs/metrics.md is generated from these texts. */
export type EventText =
  | { level: 'info'; meaning: string }
  /** `action`: what the operator does. */
  | { level: 'warn' | 'error'; meaning: string; action: string }

const info = (meaning: string): EventText => ({ level: 'info', meaning })
const warn = (meaning: string, action: string): EventText => ({ level: 'warn', meaning, action })
const error = (meaning: string, action: string): EventText => ({ level: 'error', meaning, action })

/** Every event that the program logs. An event without a row here fails tsc. */
export const events = {
  // Events of the process, its networks, nodes and upstreams.
  'database-migrated': info(
    'The start brought a database of an earlier version up to date: `applied` names the ' +
      'migrations, `backup` the copy from before.',
  ),
  stopping: info('A signal ends the service; paid requests have `limitSeconds` to finish.'),
  reloaded: info('The changed file is in force.'),
  'reload-refused': error(
    'The changed file has faults or needs a restart. The file before it stays in force.',
    'Correct each place of `faults`, run `turnpike check`, and send SIGHUP again.',
  ),
  'base-url-local': warn(
    '`base_url` is on this machine, and a request named another `host`. It is logged once, and ' +
      'clients can invent it.',
    'If the service is public, set `base_url` to its address: offers and pages name it.',
  ),
  'request-failed': error(
    'A request ended with an unexpected error. Its client got 500 with the request id.',
    'If `error` names the disk or a node, repair that. Otherwise report it as a bug.',
  ),
  'mcp-failed': error(
    'A message at `/mcp` ended with an unexpected error.',
    'The same as for `request-failed`.',
  ),
  'storage-fault': error(
    'The database cannot be read or written. Nothing is sold until it can.',
    'Free the disk, or make `file` writable: the service continues by itself. If the file is ' +
      'damaged, restore a backup.',
  ),
  'storage-recovered': info('The database can be written again.'),
  'connections-full': warn(
    'Idle connections of clients are ended because too many are open.',
    'If it lasts: raise the limit of open files and `connections_max`, or limit clients.',
  ),
  'listen-failed': error(
    'Connections of clients could not be managed.',
    'If it repeats, restart the service and report the error as a bug.',
  ),
  'log-lines-dropped': warn(
    'The log was not read for a while: `missing` lines are lost.',
    'Let the program that reads stdout keep up.',
  ),
  'upstream-accepts': info('The upstream takes our own request again, and the route sells.'),
  'upstream-failed': warn(
    'An upstream did not answer a paid request. Its buyer can redeem.',
    '`kind` says why: `connect`, `refused-address` (a private address), `timeout` or `cut`. ' +
      'Compare with `turnpike check --online`.',
  ),
  'upstream-refuses': error(
    'The upstream refused paid requests, and then our own with `status`. The route sells nothing ' +
      'until our own request passes.',
    'Correct the key of the merchant and load the file again.',
  ),
  'network-ready': info('A relayer can settle on its network.'),
  'network-not-ready': warn(
    'A relayer cannot settle now; `reason` says why and `remedy` what to do, such as the amount ' +
      'of gas to send.',
    'See "Why a relayer or a network is paused" in docs/troubleshooting.md.',
  ),
  'lane-taken': info('With several gateways: this one has taken an account on a network.'),
  'lane-given': info('This gateway leaves an account on a network to another one.'),
  'gateway-joined': info('The process serves as one of several gateways over a database.'),
  'gateway-reaped': warn(
    'Another gateway gave no sign for ten seconds: its accounts are taken over.',
    'Look at the log of that gateway, and at its connection to the database.',
  ),
  'gateway-fenced': error(
    'The other gateways took this one for dead: it ends, and sends nothing more.',
    'Let it be restarted. If it repeats, look for pauses of the machine or of the network.',
  ),
  'database-went-back': error(
    'After a failover the database lacks commits that it had acknowledged: every gateway ends.',
    'Compare the payments before the failover with the chain, then start once with `--accept-loss`. Use a synchronous standby.',
  ),
  'block-number-taken-back': warn(
    'A node named a newest block that the next checks do not confirm.',
    'If it repeats, replace the node.',
  ),
  'rpc-fault': warn(
    'A call to a node got no usable answer. Logged once until the node answers again.',
    'If it lasts, see the page of the provider, or add another URL to `rpc_urls`.',
  ),
  'rpc-recovered': info('The node answers again.'),
  'heads-live': info('The WebSocket announces new blocks.'),
  'heads-lost': warn(
    'The WebSocket ended. Receipts are polled until it is open again.',
    'If it repeats, replace `ws_url`.',
  ),
  'facilitator-settle': info('The facilitator answered a `/settle`; `answer` is the result.'),
  'grant-lost': error(
    'A grant failed on chain, as for an address that delegates to code meanwhile, or another ' +
      'transaction used its nonce.',
    'Use the relayer key in this service only.',
  ),
  'approves-missing': warn(
    'Signed approves that were funded do not arrive: no more are funded on this day (UTC).',
    'Nothing: payers can request grants. Payers may have taken the coin for something else.',
  ),
  'admin-signed-in': info('An operator signed in at `/admin`.'),
  'admin-signed-out': info('An operator signed out at `/admin`; `everywhere`: all sessions ended.'),
  'admin-action': info(
    'An operator did `action` at `/admin`: `pause`, `resume`, `retry`, `test` (a webhook), `resend`, ' +
      '`reload`, `backup` or `refund`. `ok` and `result` say how it ended.',
  ),
  'sales-paused': warn(
    'The start found a merchant or a network whose sales an operator has paused.',
    'Resume it at `/admin` to sell it again.',
  ),
  'admin-refused': warn(
    'A sign-in or a form at `/admin` was refused; `reason` is `wrong-token`, `no-tls`, `origin` ' +
      'or `csrf`.',
    'If you did not do this, change `ADMIN_TOKEN`, and limit who reaches `/admin`.',
  ),

  // Events of `serve --domain`.
  'certificate-issued': info(
    'A certificate was issued: its `domains`, its end, and when it is renewed.',
  ),
  'certificate-failed': error(
    'An order of a certificate failed. The present one is served as long as it is valid.',
    '`reason` is that of the CA or the network. Compare with docs/deploy.md, "HTTPS by itself". ' +
      'The next attempt is in `retryInSeconds`.',
  ),
  'certificate-unreadable': warn(
    'A stored certificate or key was damaged, and is replaced.',
    'Check the disk if it repeats.',
  ),
  'certificate-unsaved': error(
    'The certificate is served and could not be stored. Each minute tries again.',
    'Make the data directory writable, or free the disk.',
  ),
  'certificate-unserved': error(
    'The port of HTTPS could not be opened. Each minute tries again.',
    'End the program that has the port.',
  ),

  // Events of settlement and delivery.
  'relayer-paused': warn(
    'A node refuses the transactions of a relayer, or one stays out at the fee cap.',
    'See "Why a relayer or a network is paused" in docs/troubleshooting.md.',
  ),
  'transaction-included': info(
    'A transaction is in a block; `paid` and `unpaid` count its payments.',
  ),
  'transaction-replaced': info(
    'A transaction was not included in time and is sent again with higher fees.',
  ),
  'transaction-recovered': info('The start continues a transaction of an earlier process.'),
  'transaction-reorganised': warn(
    'A reorganisation removed a transaction. Its bytes are sent again.',
    'If it is frequent, raise `confirmations` of the network.',
  ),
  'payment-reorganised': warn(
    'A confirmed payment is in progress again because its transaction was removed.',
    'Nothing: the payment is sent again. Its answer is not delivered twice.',
  ),
  'payment-settled-again': info(
    'A removed external settlement is replaced by a transaction of ours.',
  ),
  'payment-settled-externally': info('The transaction of another sender settled the payment.'),
  'payment-undecided': warn(
    'A reorganisation removed a settlement, and no node shows what replaced it.',
    'Wait for `reorg_depth` blocks. If the payment expires, search its nonce by hand.',
  ),
  'payment-expired': info('The chain proves that the payment did not pay and no longer can.'),
  'payment-dead': info('A buyer came back with a credential whose payment can no longer pay.'),
  'payment-delivery': info(
    'A delivery ended; `outcome` says how much of the answer its buyer got.',
  ),
  'payment-delivery-unrecorded': error(
    'The end of a delivery could not be written. The buyer could get it once more.',
    'See `error`; it usually names the disk.',
  ),
  'entitlement-use': info(
    'An answer without a further payment: `kind` says by which entitlement, `reach` how much of it its ' +
      'client got. With `nothing` the use was given back.',
  ),
  'entitlement-use-unrecorded': error(
    'The end of a use could not be written. A start gives such uses back.',
    'See `error`; it usually names the disk.',
  ),
  'payment-undelivered': warn(
    'A payment is settled and its answer failed. The buyer got a redeem token.',
    'Repair the upstream: `upstreamStatus` is its answer, absent if there was none.',
  ),
  'answer-not-kept': warn(
    'An answer could not be stored for its `Idempotency-Key`, or for a buyer by use that has not got it.',
    'See `error`; it usually names the disk.',
  ),
  'answer-unrecorded': warn(
    'The record that the buyer has its redeem token could not be written.',
    'See `error`; it usually names the disk.',
  ),
  'batch-failed': warn(
    'Payments of one transaction failed on chain; `attributed` names their payers.',
    'Nothing for single ones. If many payers fail, see the gas limits and the token.',
  ),
  'nonce-used-by-others': error(
    'Another program sent a transaction with the key of a relayer.',
    'Find the program. Use each relayer key in this service only.',
  ),
  'nonce-gap': warn(
    'The chain counts fewer transactions of a relayer than this service saw included.',
    'Nothing: the gap is closed. If it repeats, the node is wrong; replace it.',
  ),
  'settlement-fault': error(
    'A step of the settlement failed unexpectedly. It is repeated.',
    'If `error` names the disk or a node, repair that. Otherwise report it as a bug.',
  ),
  'settlement-undecided': warn(
    'A node gave no answer that decides a payment. It is asked again.',
    'If it lasts, replace the node.',
  ),
  'settlement-unconfirmed': warn(
    'The second node does not show a transfer that the first one shows.',
    'If it lasts, replace the node that lags: buyers wait for it.',
  ),
  'settlement-disputed': error(
    'Two nodes contradict each other about a transfer. Nothing is delivered for it.',
    'Find out by a block explorer which node is wrong and remove it. Then retry a held order.',
  ),
  'settlement-without-record': error(
    'A relayer sent a settlement that the database does not contain. It buys nothing.',
    'After a restore this is normal for payments that are newer than the backup. Otherwise ' +
      'another process uses the key.',
  ),
  'job-sent': info('A swap, refund, grant or approve is sent.'),
  'job-recovered': info('The start continues a job of an earlier process.'),
  charge: info(
    'What an answer costs by its use is written. `reason` says why it has no usage, such as the place of an error.',
  ),
  'charge-failed': warn(
    'A charge by use could not be settled now; `reason` says why.',
    'Nothing: its payer cannot pay by `upto` for a day. The cost is that of one answer.',
  ),
  'charge-waiting': warn(
    'A charge has not been sent for half a minute; `reason` says what it waits for.',
    'If it lasts, see `reason`: the charge is lost when its signature ends.',
  ),
  'charge-lost': error(
    'The signature of a charge ended before it was settled. Its money cannot move.',
    'See why the network or the relayer was not ready for as long.',
  ),
  'charge-without-relayer': error(
    'Only `relayer` may settle a charge, and its key is not configured now.',
    'Stop, add the key of that relayer, and start within the time of the signature.',
  ),
  'losses-spent': warn(
    'A merchant lost `losses_per_day` by `upto`: payers that are new to it pay by `exact`.',
    'See `authorization-void` and `charge-failed` in the log, and whether the upstream fails.',
  ),
  'authorization-void': info('A signature by use ends without a charge: its answer failed.'),

  // Events of the stock desk.
  order: info('An order has a new state.'),
  'order-refused': warn(
    'A paid order is refunded because the market changed; `reason` says how.',
    'Nothing. If it is frequent, see whether the pool is deep enough for the amounts.',
  ),
  'order-fault': warn(
    'A step of an order failed. It is tried again with a growing pause.',
    'If it repeats for an order, see `error`, then `turnpike orders show ID`.',
  ),
  'order-held-still': error(
    'The retry of a held order changed nothing: the chain shows the same as before.',
    'Compare the transactions of `turnpike orders show ID` with a block explorer.',
  ),
  'order-settlement-unseen': warn(
    'For `seconds` the nodes have not shown the payment of an order.',
    'If it lasts, replace the node that lags: the order waits until both show it.',
  ),
  'order-unpaid': error(
    'Shares were delivered, and then a reorganisation removed their payment permanently.',
    'The desk has lost the amount. Raise `confirmations` if it happens again.',
  ),
  'order-paid-twice': error(
    'After a reorganisation an order is both delivered and refunded.',
    'The desk has lost the amount. Raise `confirmations` if it happens again.',
  ),
  'order-of-another-desk': error(
    'An unfinished order was paid to the account `desk`, which is not configured now.',
    'Start with the key of that account as `DESK_KEY` until its orders are finished.',
  ),

  // Events of refunds.
  'refund-requested': info(
    'A payment was never delivered and can no longer be fetched: its money is sent back.',
  ),
  'refund-waiting': warn(
    'A refund is not sent; `reason` says what it waits for. It is sent when that has changed.',
    'See `/admin/refunds`. If `reason` is the balance, send the asset to the account of REFUND_KEY.',
  ),
  'refund-failed': error(
    'The transaction of a refund failed, and no reorganisation can change that.',
    'See why in a block explorer, then `turnpike refund ID --retry` or the button on its page.',
  ),
  'refund-elsewhere': info(
    'The transaction of another sender made a refund, with the signature that ours had published.',
  ),
  'refund-fault': warn(
    'A step of a refund failed. It is tried again.',
    'If it lasts, see `error`; it usually names a node or the disk.',
  ),

  // Events of payment channels.
  'channel-withdrawal': warn(
    'The payer of a channel has begun a withdrawal. What is unclaimed of it is claimed at once.',
    'Nothing. If `channel-claims-late` follows, see there.',
  ),
  'channel-claims-late': error(
    'Vouchers are not claimed in time; `reason` says why. A withdrawal may take their money.',
    'If `reason` names gas, fund the relayers of the network. Else see the nodes of the network.',
  ),
  'channel-claim-refused': error(
    'Every node refuses the claim of a channel: a withdrawal or a reorganisation came first.',
    'Compare the channel with a block explorer. What it was charged above its balance is lost.',
  ),
  'channel-fault': warn(
    'The channels of a network cannot be followed. It is tried again at each look.',
    'If it lasts, see `error`; it usually names a node. No voucher is taken after a tenth of the delay.',
  ),

  // Events of webhooks and of places of alerts. `endpoint` names one by its id, `origin` is its URL without the path.
  'webhook-recovered': info('An endpoint takes messages again.'),
  'webhook-failing': warn(
    'Five attempts at an endpoint failed in a row. It gets one attempt at a time until one succeeds.',
    'Repair the receiver. Messages are tried for a day; `turnpike webhooks list` shows them.',
  ),
  'webhook-disabled': error(
    'An endpoint answered 410. It gets nothing more until the next reload or start.',
    'Remove it from the file, or repair it and send SIGHUP.',
  ),
  'webhook-lost': warn(
    'Messages of an endpoint were given up: after a day, or above the number that may wait.',
    'Read what happened from `turnpike sales` or `turnpike orders`, and repair the receiver.',
  ),
  'webhook-fault': error(
    'The result of an attempt could not be written. The message is sent again.',
    'The same as for `storage-fault`.',
  ),
}

export type Name = keyof typeof events
