import type { Address } from 'viem'
import type { Order } from '../../db/Order'
import type { payments } from '../../db/schema'
import type { Receipt } from '../../src/chain/receipt'
import type { Stock, StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import type * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import type { Job, JobCall } from '../../src/settlement/send/Job'
import * as Orders from '../../src/stock/Order'
import type { Random } from '../soak/random'
import { networkOf } from './settlement'

/** Data of the model of a chain and its orders. */

export const network = networkOf('http://127.0.0.1:1')
export const asset = network.asset.address
export const deskAddress: Address = account(0).address

const contract = (digit: string): Address => Crypto.checksum(digit.repeat(40))

export const token: StockToken = {
  symbol: 'NVDA',
  name: 'NVIDIA',
  address: contract('a'),
  pool: contract('b'),
  fee: 500,
  slippageBps: 100,
  feed: undefined,
}

export const stock: Stock = {
  network: network.id,
  minAtomic: 1_000_000n,
  maxAtomic: 1_000_000_000n,
  feeBps: 0,
  feedDistanceBps: 300,
  feedMaxAgeSeconds: 93_600,
  factory: contract('c'),
  router: contract('d'),
  quoter: contract('e'),
  registry: contract('9'),
  seller: undefined,
  restrictions: '',
  risk: '',
  issuerUrl: undefined,
  explorerUrl: undefined,
  tokens: [token],
}

/** An order of the model without any transaction. */
export function orderOf(
  random: Random,
  changes: Partial<Order> = {},
): Omit<Order, 'paymentId' | 'settlementTx'> {
  const usdgAtomic = 1_000_000n + BigInt(random.between(0, 999_000_000))
  const quotedAtomic = usdgAtomic * 1_000_000_000n
  return {
    id: Orders.newId(random.between(1_000, 1_000_000), crypto.getRandomValues(new Uint8Array(10))),
    network: network.id,
    symbol: token.symbol,
    token: token.address,
    pool: token.pool,
    poolFee: token.fee,
    payer: account(random.between(1, 4)).address,
    recipient: account(random.between(1, 4)).address,
    usdgAtomic,
    totalAtomic: usdgAtomic,
    quotedAtomic,
    floorAtomic: (quotedAtomic * 99n) / 100n,
    ...untouched,
    createdAt: 1_000,
    updatedAt: 1_000,
    ...changes,
  }
}

/** Members of an order before any transaction is sent. */
const untouched = {
  state: 'settling',
  swapTx: undefined,
  refundTx: undefined,
  deliveredAtomic: undefined,
  returnedAtomic: undefined,
  refundReason: undefined,
  heldReason: undefined,
  refundAttempts: 0,
  retryAt: undefined,
  settledAt: undefined,
} as const satisfies Partial<Order>

/**
 * The signed transfer in a transaction of the desk: a refund, or the funding call in the code of a
 * swap.
 */
export function readSigned(sent: JobCall): Permit.ParsedCall {
  const call = sent.isCreation
    ? // The same words as those of a refund, behind another selector.
      `0xe3ee160e${sent.data.slice(sent.data.indexOf('ef55bec6') + 8)}`
    : sent.data
  const signed = Transfer.parseCall(asset, call)
  if (signed?.payer !== deskAddress) throw new Error('the desk has signed nothing')
  if (sent.isCreation && signed.payee !== sent.to) throw new Error('the swap pays another account')
  return signed
}

/** Id of the order that a job is for. */
export function orderOfJob({ id }: Job): string {
  return id.split(':')[1] ?? ''
}

/** Row of the payment of an order. */
export function paymentRow(order: Order): typeof payments.$inferInsert {
  return {
    id: order.paymentId,
    method: 'permit2',
    network: order.network,
    chainId: network.chainId,
    asset,
    payer: order.payer,
    payee: deskAddress,
    amountAtomic: order.totalAtomic,
    nonce: Crypto.hex(Crypto.keccak256(order.paymentId)),
    validAfter: 0n,
    validBefore: 10_000_000_000n,
    signature: '0x11',
    product: 'desk',
    protocol: 'x402',
    merchant: '',
    route: '/api/stock/buy',
    fingerprint: order.id,
    resource: 'http://localhost/api/stock/buy',
    bound: false,
    receivedAt: 1,
    knownBlock: 1n,
    state: 'broadcast',
    transactionHash: order.settlementTx,
    createdAt: 1,
  }
}

/** A receipt as a node sends it. */
export function encode(receipt: Receipt): object {
  const quantity = (value: bigint | number) => `0x${value.toString(16)}`
  return {
    transactionHash: receipt.hash,
    status: receipt.success ? '0x1' : '0x0',
    blockNumber: quantity(receipt.blockNumber),
    blockHash: receipt.blockHash,
    effectiveGasPrice: '0x1',
    gasUsed: '0x1',
    logs: receipt.logs.map((log) => ({
      ...log,
      logIndex: quantity(log.index),
      transactionHash: receipt.hash,
      blockNumber: quantity(receipt.blockNumber),
    })),
  }
}
