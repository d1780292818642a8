import type { EventText } from './EventText'

/** Events of the stock desk. */
export const orderEvents = {
  order: { level: 'info', meaning: 'An order has a new state.' },
  'order-refused': {
    level: 'warn',
    meaning: 'A paid order is refunded because the market changed; `reason` says how.',
    action: 'Nothing. If it is frequent, see whether the pool is deep enough for the amounts.',
  },
  'order-fault': {
    level: 'warn',
    meaning: 'A step of an order failed. It is tried again with a growing pause.',
    action: 'If it repeats for an order, see `error`, then `turnpike orders show ID`.',
  },
  'order-held-still': {
    level: 'error',
    meaning: 'The retry of a held order changed nothing: the chain shows the same as before.',
    action: 'Compare the transactions of `turnpike orders show ID` with a block explorer.',
  },
  'order-settlement-unseen': {
    level: 'warn',
    meaning: 'For `seconds` the nodes have not shown the payment of an order.',
    action: 'If it lasts, replace the node that lags: the order waits until both show it.',
  },
  'order-unpaid': {
    level: 'error',
    meaning: 'Shares were delivered, and then a reorganisation removed their payment permanently.',
    action: 'The desk has lost the amount. Raise `confirmations` if it happens again.',
  },
  'order-paid-twice': {
    level: 'error',
    meaning: 'After a reorganisation an order is both delivered and refunded.',
    action: 'The desk has lost the amount. Raise `confirmations` if it happens again.',
  },
  'order-of-another-desk': {
    level: 'error',
    meaning: 'An unfinished order was paid to the account `desk`, which is not configured now.',
    action: 'Start with the key of that account as `DESK_KEY` until its orders are finished.',
  },
} as const satisfies Readonly<Record<string, EventText>>
