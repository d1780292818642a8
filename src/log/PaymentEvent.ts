import type { EventText } from './EventText'

/** Events of settlement and delivery. */
export const paymentEvents = {
  'relayer-paused': {
    level: 'warn',
    meaning: 'A node refuses the transactions of a relayer, or one stays out at the fee cap.',
    action: 'See "Why a relayer or a network is paused" in docs/troubleshooting.md.',
  },
  'transaction-included': {
    level: 'info',
    meaning: 'A transaction is in a block; `paid` and `unpaid` count its payments.',
  },
  'transaction-replaced': {
    level: 'info',
    meaning: 'A transaction was not included in time and is sent again with higher fees.',
  },
  'transaction-recovered': {
    level: 'info',
    meaning: 'The start continues a transaction of an earlier process.',
  },
  'transaction-reorganised': {
    level: 'warn',
    meaning: 'A reorganisation removed a transaction. Its bytes are sent again.',
    action: 'If it is frequent, raise `confirmations` of the network.',
  },
  'payment-reorganised': {
    level: 'warn',
    meaning: 'A confirmed payment is in progress again because its transaction was removed.',
    action: 'Nothing: the payment is sent again. Its answer is not delivered twice.',
  },
  'payment-settled-again': {
    level: 'info',
    meaning: 'A removed external settlement is replaced by a transaction of ours.',
  },
  'payment-settled-externally': {
    level: 'info',
    meaning: 'The transaction of another sender settled the payment.',
  },
  'payment-undecided': {
    level: 'warn',
    meaning: 'A reorganisation removed a settlement, and no node shows what replaced it.',
    action: 'Wait for `reorg_depth` blocks. If the payment expires, search its nonce by hand.',
  },
  'payment-expired': {
    level: 'info',
    meaning: 'The chain proves that the payment did not pay and no longer can.',
  },
  'payment-dead': {
    level: 'info',
    meaning: 'A buyer came back with a credential whose payment can no longer pay.',
  },
  'payment-delivery': {
    level: 'info',
    meaning: 'A delivery ended; `outcome` says how much of the answer its buyer got.',
  },
  'payment-delivery-unrecorded': {
    level: 'error',
    meaning: 'The end of a delivery could not be written. The buyer could get it once more.',
    action: 'See `error`; it usually names the disk.',
  },
  'payment-undelivered': {
    level: 'warn',
    meaning: 'A payment is settled and its answer failed. The buyer got a redeem token.',
    action: 'Repair the upstream: `upstreamStatus` is its answer, absent if there was none.',
  },
  'answer-not-kept': {
    level: 'warn',
    meaning:
      'An answer could not be stored for its `Idempotency-Key`, or for a buyer by use that has not got it.',
    action: 'See `error`; it usually names the disk.',
  },
  'answer-unrecorded': {
    level: 'warn',
    meaning: 'The record that the buyer has its redeem token could not be written.',
    action: 'See `error`; it usually names the disk.',
  },
  'batch-failed': {
    level: 'warn',
    meaning: 'Payments of one transaction failed on chain; `attributed` names their payers.',
    action: 'Nothing for single ones. If many payers fail, see the gas limits and the token.',
  },
  'nonce-used-by-others': {
    level: 'error',
    meaning: 'Another program sent a transaction with the key of a relayer.',
    action: 'Find the program. Use each relayer key in this service only.',
  },
  'nonce-gap': {
    level: 'warn',
    meaning: 'The chain counts fewer transactions of a relayer than this service saw included.',
    action: 'Nothing: the gap is closed. If it repeats, the node is wrong; replace it.',
  },
  'settlement-fault': {
    level: 'error',
    meaning: 'A step of the settlement failed unexpectedly. It is repeated.',
    action: 'If `error` names the disk or a node, repair that. Otherwise report it as a bug.',
  },
  'settlement-undecided': {
    level: 'warn',
    meaning: 'A node gave no answer that decides a payment. It is asked again.',
    action: 'If it lasts, replace the node.',
  },
  'settlement-unconfirmed': {
    level: 'warn',
    meaning: 'The second node does not show a transfer that the first one shows.',
    action: 'If it lasts, replace the node that lags: buyers wait for it.',
  },
  'settlement-disputed': {
    level: 'error',
    meaning: 'Two nodes contradict each other about a transfer. Nothing is delivered for it.',
    action:
      'Find out by a block explorer which node is wrong and remove it. Then retry a held order.',
  },
  'settlement-without-record': {
    level: 'error',
    meaning: 'A relayer sent a settlement that the database does not contain. It buys nothing.',
    action:
      'After a restore this is normal for payments that are newer than the backup. Otherwise ' +
      'another process uses the key.',
  },
  'job-sent': { level: 'info', meaning: 'A swap, refund, grant or approve is sent.' },
  'job-recovered': { level: 'info', meaning: 'The start continues a job of an earlier process.' },
  charge: {
    level: 'info',
    meaning:
      'What an answer costs by its use is written. `reason` says why it has no usage, such as the place of an error.',
  },
  'charge-failed': {
    level: 'warn',
    meaning: 'A charge by use could not be settled now; `reason` says why.',
    action: 'Nothing: its payer cannot pay by `upto` for a day. The cost is that of one answer.',
  },
  'charge-waiting': {
    level: 'warn',
    meaning: 'A charge has not been sent for half a minute; `reason` says what it waits for.',
    action: 'If it lasts, see `reason`: the charge is lost when its signature ends.',
  },
  'charge-lost': {
    level: 'error',
    meaning: 'The signature of a charge ended before it was settled. Its money cannot move.',
    action: 'See why the network or the relayer was not ready for as long.',
  },
  'charge-without-relayer': {
    level: 'error',
    meaning: 'Only `relayer` may settle a charge, and its key is not configured now.',
    action: 'Stop, add the key of that relayer, and start within the time of the signature.',
  },
  'losses-spent': {
    level: 'warn',
    meaning:
      'A merchant lost `losses_per_day` by `upto`: payers that are new to it pay by `exact`.',
    action:
      'See `authorization-void` and `charge-failed` in the log, and whether the upstream fails.',
  },
  'authorization-void': {
    level: 'info',
    meaning: 'A signature by use ends without a charge: its answer failed.',
  },
} as const satisfies Readonly<Record<string, EventText>>
