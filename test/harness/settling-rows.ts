import { getAddress, type Hex } from 'viem'
import type { JobRow, PaymentRow, TransactionRow } from '../../db/schema'
import { account } from '../../src/demo/accounts'
import type * as Network from '../../src/protocol/Network'

/** Unix ms. */
export const at = 1_750_000_000_000

let serial = 0

/** A number that no other row of this process has. */
export function next(): number {
  serial++
  return serial
}

export function hashOf(number: number): Hex {
  return `0x${number.toString(16).padStart(64, '0')}`
}

/** A network of one test, so that others of the same database do not disturb it. */
export function freshNetwork(): Network.Id {
  return `eip155:${10_000 + next()}`
}

export const asset = getAddress('0x833589fcd6edb6e08f4c7c32d4f71b54bda02913')
export const relayer = account(0).address

/** A payment of new money that is sent with the transaction. */
export function paymentRow(
  { network, hash }: Pick<TransactionRow, 'network' | 'hash'>,
  changes: Partial<PaymentRow> = {},
): PaymentRow {
  const number = next()
  return {
    id: `pay_${number.toString(16).padStart(32, '0')}`,
    method: 'eip3009',
    network,
    chainId: Number(network.slice('eip155:'.length)),
    asset,
    payer: account(2).address,
    payee: account(7).address,
    amountAtomic: 5_000n,
    nonce: hashOf(number),
    validAfter: 0n,
    validBefore: 2n ** 255n,
    signature: `0x${'ab'.repeat(65)}`,
    product: 'gateway',
    protocol: 'x402',
    merchant: 'weather',
    route: '/forecast',
    fingerprint: 'f'.repeat(64),
    resource: 'http://gateway.test/weather/forecast',
    idempotencyKey: null,
    challengeId: null,
    credentialHash: 'c'.repeat(64),
    client: 'curl',
    bound: true,
    receivedAt: at,
    knownBlock: 100n,
    state: 'broadcast',
    transactionHash: hash,
    logIndex: null,
    blockNumber: null,
    delivery: 'none',
    attempts: 0,
    upstreamStatus: null,
    truncated: false,
    answered: false,
    redeemTokenHash: null,
    redeemUntil: null,
    permit2612Value: null,
    permit2612Deadline: null,
    permit2612Signature: null,
    ceilingAtomic: null,
    facilitator: null,
    nonceUsed: false,
    createdAt: at,
    confirmedAt: null,
    deliveredAt: null,
    ...changes,
  }
}

/** A signed transaction of a new hash, and of a new account nonce. */
export function transactionRow(
  network: Network.Id,
  changes: Partial<TransactionRow> = {},
): TransactionRow {
  const number = next()
  return {
    hash: hashOf(number),
    network,
    relayer,
    nonce: number,
    kind: 'payment',
    product: 'gateway',
    to: asset,
    raw: '0x02f8',
    gasLimit: 100_000n,
    maxFeeWei: 1_000_000_000n,
    maxTipWei: 1_000_000n,
    state: 'sent',
    createdAt: at,
    firstSentAt: at,
    blockNumber: null,
    ...changes,
  }
}

/** A job that is sent with the transaction. */
export function jobRow(transaction: TransactionRow, changes: Partial<JobRow> = {}): JobRow {
  return {
    id: `job:${next()}`,
    kind: 'refund',
    product: 'desk',
    network: transaction.network,
    relayer: transaction.relayer,
    nonce: transaction.nonce,
    to: transaction.to,
    valueWei: 7n,
    state: 'broadcast',
    transactionHash: transaction.hash,
    blockNumber: null,
    receipt: null,
    createdAt: at,
    endedAt: null,
    ...changes,
  }
}
