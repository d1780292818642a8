import type { Address, Hex } from 'viem'
import type { Db } from '../../db/open'
import { payments } from '../../db/schema'
import { write } from '../../db/write'
import { RpcFault } from '../../src/chain/client'
import type { Receipt } from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import type { Stock, StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Abi from '../../src/protocol/Abi'
import * as Crypto from '../../src/protocol/Crypto'
import type { Errand, ErrandEnd } from '../../src/settlement/Errand'
import { createStore } from '../../src/settlement/store'
import type { DeskMarket, DeskSettlement } from '../../src/stock/context'
import type { Order } from '../../src/stock/Order'
import * as Orders from '../../src/stock/Order'
import type { Random } from '../soak/random'
import { networkOf } from './settlement'

/**
 * A chain and a settlement in memory, for orders by the thousand: the order machine and the database
 * are the real ones. Everything that can happen is an event that the test draws.
 */

export const network = networkOf('http://127.0.0.1:1')
const asset = network.asset.address
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
  issuerUrl: undefined,
  explorerUrl: undefined,
  tokens: [token],
}

type ModelErrand = {
  errand: Errand
  nonce: number
  transaction: Hex
  state: 'broadcast' | 'confirmed' | 'failed' | 'replaced'
  blockNumber: bigint | undefined
  receipt: Receipt | undefined
  /** Kept over a reorganisation: what is included again ends as before. */
  fate: 'confirmed' | 'failed' | undefined
  sharesAtomic: bigint | undefined
  returnedAtomic: bigint | undefined
}

/** `wasPaid`: what a reorganisation takes away is included again sooner or later. */
type ModelPayment = { order: Order; transaction: Hex; isPaid: boolean; wasPaid: boolean }

type Listener = (id: string) => void
type Swap = {
  orderId: string
  usdgAtomic: bigint
  /** Part of it that the pool did not take, and who got it. */
  returnedAtomic: bigint
  payer: Address
  sharesAtomic: bigint
  recipient: Address
}

/** The world as it is, and levers to change it. */
export type Model = ReturnType<typeof createModel>

export function createModel(db: Db, random: Random) {
  const store = createStore(db)
  const errands = new Map<string, ModelErrand>()
  const paid = new Map<string, ModelPayment>()
  const receipts = new Map<Hex, Receipt>()
  const listeners = { errand: [] as Listener[], payment: [] as Listener[] }
  const swaps: Swap[] = []
  const refunds: { orderId: string; payer: Address; amountAtomic: bigint }[] = []
  let block = 1_000n
  let nonce = 0
  let serial = 0
  let allowedAtomic = 0n
  /** A process that was killed never hears an answer. */
  let generation = 0
  const state = {
    /** Shares for a thousand USDG. */
    price: 1_000_000_000_000_000n,
    isDrained: false,
    isPaused: false,
    blocked: new Set<string>(),
    /** Share of calls that no node answers. */
    faults: 0,
    /** Share of successful swaps whose receipt lacks its Transfer: half of them for good. */
    silent: 0,
    /** Share of swaps that find a pool which takes only a part of the money. */
    shallow: 0.2,
    deskAtomic: 0n,
  }

  function ring(id: string): void {
    for (const listener of listeners.payment) listener(id)
  }
  function ringErrand(id: string): void {
    for (const listener of listeners.errand) listener(id)
  }
  const hash = (): Hex => Crypto.hex(Crypto.keccak256(`transaction ${++serial}`))
  const sharesFor = (usdgAtomic: bigint) => (usdgAtomic * state.price) / 1_000_000n

  /** An answer of the node, a fault, or silence for a process that is gone. */
  async function node<T>(born: number, answer: () => T): Promise<T> {
    for (let turn = random.between(0, 2); turn > 0; turn--) await Promise.resolve()
    if (random.chance(0.3)) await new Promise((resolve) => setImmediate(resolve))
    if (born !== generation) return new Promise<T>(() => undefined)
    if (random.chance(state.faults)) throw new RpcFault('no node answers')
    return answer()
  }

  function transferLog(from: Address, to: Address, contractAddress: Address, amount: bigint) {
    return {
      address: contractAddress,
      topics: [Token.transferTopic, Token.addressTopic(from), Token.addressTopic(to)],
      data: `0x${Abi.uint(amount)}` as Hex,
      index: 0,
    }
  }
  function receiptOf(transaction: Hex, success: boolean, logs: Receipt['logs']): Receipt {
    const blockHash = Crypto.hex(Crypto.keccak256(`block ${block}`))
    const base = { hash: transaction, success, blockNumber: block, blockHash, logs }
    return { ...base, effectiveGasPriceWei: 1n, gasUsed: 1n, spentWei: 1n }
  }

  function settlementOf(born: number): DeskSettlement {
    const isMine = () => born === generation
    return {
      desk: deskAddress,
      findById: store.findById,
      errand(id) {
        const known = errands.get(id)
        return known && { ...known }
      },
      onErrand: (listener) => void listeners.errand.push((id) => isMine() && listener(id)),
      onPayment: (listener) => void listeners.payment.push((id) => isMine() && listener(id)),
      async run(errand, { waitMs, write: record }) {
        if (!errands.has(errand.id)) {
          const isReady = await node(born, () => !random.chance(state.faults)).catch(() => false)
          if (!isReady) return { kind: 'unavailable', detail: 'poor', retryAfterSeconds: 1 }
        }
        if (!errands.has(errand.id)) {
          const transaction = hash()
          write(db, () => record?.(transaction))
          const unknown = { fate: undefined, sharesAtomic: undefined, returnedAtomic: undefined }
          const row = { errand, nonce: nonce++, transaction, blockNumber: undefined }
          errands.set(errand.id, { ...row, state: 'broadcast', receipt: undefined, ...unknown })
        }
        if (waitMs > 0) await node(born, () => undefined).catch(() => undefined)
        const known = errands.get(errand.id)
        if (known === undefined) throw new Error('an errand was forgotten')
        const { transaction, receipt } = known
        if (known.state === 'broadcast') return { kind: 'pending', transaction }
        if (known.state === 'replaced') return { kind: 'replaced', transaction }
        if (receipt === undefined) throw new Error('an errand ended without receipt')
        return { kind: known.state, transaction, receipt } satisfies ErrandEnd
      },
      read: (_, calls) =>
        node(born, () => ({
          blockNumber: block,
          results: calls.map(() => `0x${Abi.uint(allowedAtomic)}` as Hex),
        })),
      sightOf: ({ transaction, transfer }) =>
        node(born, () => {
          const logs = receipts.get(transaction)?.logs ?? []
          return logs.some((log) => Token.isTransfer(log, transfer)) ? 'shown' : 'unseen'
        }),
      rpc: (_, method, [first]) =>
        node(born, () => {
          if (method === 'eth_blockNumber') return `0x${block.toString(16)}`
          const receipt = receipts.get(first as Hex)
          return receipt ? encode(receipt) : null
        }),
    }
  }

  function marketOf(born: number): DeskMarket {
    return {
      see: (_, usdgAtomic, people) =>
        node(born, () => {
          const isBlocked = people.some((each) => state.blocked.has(each)) && random.chance(0.5)
          const code = state.isPaused ? 'paused' : isBlocked ? 'halted' : undefined
          return {
            verdict: code
              ? { ok: false, code, detail: code, status: 503 }
              : { ok: true, warnings: [] },
            sharesAtomic: state.isDrained || state.isPaused ? undefined : sharesFor(usdgAtomic),
          }
        }),
      // The model reads the terms, not calldata.
      swap: (terms) => ({
        to: stock.router,
        data: `0x${Abi.uint(terms.usdgAtomic)}${Abi.uint(terms.floorAtomic)}${Abi.address(terms.recipient)}${Abi.address(terms.payer)}`,
      }),
    }
  }

  function execute(known: ModelErrand): void {
    const { errand } = known
    const orderId = errand.id.split(':')[1] ?? ''
    const words = errand.data.slice(errand.kind === 'swap' ? 2 : 10)
    const logs: Receipt['logs'][number][] = []
    let late: Receipt['logs'] = []
    let success = known.fate !== 'failed'
    if (errand.kind === 'allowance') allowedAtomic = Abi.toUint(Abi.wordAt(words, 1)) ?? 0n
    if (errand.kind === 'swap') {
      const usdgAtomic = Abi.toUint(Abi.wordAt(words, 0)) ?? 0n
      const floorAtomic = Abi.toUint(Abi.wordAt(words, 1)) ?? 0n
      const recipient = Abi.toAddress(Abi.wordAt(words, 2)) ?? asset
      const sharesAtomic = known.sharesAtomic ?? sharesFor(usdgAtomic)
      known.sharesAtomic = sharesAtomic
      const payer = Abi.toAddress(Abi.wordAt(words, 3)) ?? asset
      const part = random.chance(state.shallow) ? BigInt(random.between(1, 99)) : 0n
      const returnedAtomic = known.returnedAtomic ?? (usdgAtomic * part) / 100n
      known.returnedAtomic = returnedAtomic
      const isRefused =
        state.isDrained ||
        state.isPaused ||
        state.blocked.has(recipient) ||
        (returnedAtomic > 0n && state.blocked.has(payer)) ||
        sharesAtomic < floorAtomic ||
        allowedAtomic < usdgAtomic ||
        state.deskAtomic < usdgAtomic
      if (known.fate === undefined) success = !isRefused
      if (success) {
        allowedAtomic -= usdgAtomic
        state.deskAtomic -= usdgAtomic
        swaps.push({ orderId, usdgAtomic, returnedAtomic, payer, sharesAtomic, recipient })
        if (returnedAtomic > 0n) logs.push(transferLog(stock.router, payer, asset, returnedAtomic))
        const delivery = transferLog(token.pool, recipient, token.address, sharesAtomic)
        if (!random.chance(state.silent)) logs.push(delivery)
        else if (random.chance(0.5)) late = [delivery]
      }
    }
    if (errand.kind === 'refund') {
      const payer = Abi.toAddress(Abi.wordAt(words, 0)) ?? asset
      const amountAtomic = Abi.toUint(Abi.wordAt(words, 1)) ?? 0n
      const isRefused = state.blocked.has(payer) || state.deskAtomic < amountAtomic
      if (known.fate === undefined) success = !isRefused
      if (success) {
        state.deskAtomic -= amountAtomic
        refunds.push({ orderId, payer, amountAtomic })
        logs.push(transferLog(deskAddress, payer, asset, amountAtomic))
      }
    }
    known.receipt = receiptOf(known.transaction, success, logs)
    known.blockNumber = block
    known.state = success ? 'confirmed' : 'failed'
    known.fate = known.state
    receipts.set(known.transaction, { ...known.receipt, logs: [...logs, ...late] })
    ringErrand(errand.id)
  }

  return {
    state,
    swaps,
    refunds,
    errands,
    paid,
    /** What a process sees that is started now. */
    connect: () => ({ settlement: settlementOf(generation), market: marketOf(generation) }),
    /** Ends the process that was connected, wherever it is. */
    kill(): void {
      generation++
    },
    /** A payment and its order, as the settlement writes them together. */
    buy(order: Omit<Order, 'paymentId' | 'settlementTx'>, insert: (order: Order) => void): Order {
      const transaction = hash()
      const full: Order = { ...order, paymentId: `pay_${++serial}`, settlementTx: transaction }
      write(db, () => {
        db.orm.insert(payments).values(paymentRow(full)).run()
        insert(full)
      })
      paid.set(full.paymentId, { order: full, transaction, isPaid: false, wasPaid: false })
      return full
    },
    /** Payments that are not on the chain. */
    unpaid: () => [...paid].filter(([, each]) => !each.isPaid).map(([id]) => id),
    /** Includes a payment, or proves that it never will be. */
    endPayment(id: string, isPaid: boolean): void {
      const payment = paid.get(id)
      if (payment === undefined || store.findById(id)?.state !== 'broadcast') return
      const { transaction, order } = payment
      block++
      if (isPaid) {
        payment.isPaid = true
        payment.wasPaid = true
        state.deskAtomic += order.totalAtomic
        const log = transferLog(order.payer, deskAddress, asset, order.totalAtomic)
        receipts.set(transaction, receiptOf(transaction, true, [log]))
        write(db, () =>
          store.confirm(id, { transaction, logIndex: serial++, blockNumber: block }, 1),
        )
      } else if (!payment.wasPaid) {
        write(db, () => store.expire(id, false))
      }
      ring(id)
    },
    /** A reorganisation takes a settled payment away; it is included again later. */
    dropPayment(id: string): void {
      const payment = paid.get(id)
      if (payment === undefined || store.findById(id)?.state !== 'confirmed') return
      if (state.deskAtomic < payment.order.totalAtomic) return
      payment.isPaid = false
      state.deskAtomic -= payment.order.totalAtomic
      receipts.delete(payment.transaction)
      write(db, () => store.reopen(network.id, payment.transaction))
      ring(id)
    },
    /** Includes the errand with the lowest account nonce, or somebody else's transaction there. */
    mine(isReplaced: boolean): boolean {
      const next = [...errands.values()]
        .filter((each) => each.state === 'broadcast')
        .sort((left, right) => left.nonce - right.nonce)[0]
      if (next === undefined) return false
      block++
      if (!isReplaced || next.fate !== undefined) execute(next)
      else {
        next.state = 'replaced'
        ringErrand(next.errand.id)
      }
      return true
    },
    /** Takes the newest included errand away, at most a few blocks deep. */
    reorganise(): void {
      const newest = [...errands.values()]
        .filter((each) => each.blockNumber !== undefined && each.blockNumber > block - 4n)
        .sort((left, right) => right.nonce - left.nonce)[0]
      if (newest === undefined || newest.errand.kind === 'allowance') return
      if ([...errands.values()].some((each) => each.nonce > newest.nonce && each.receipt)) return
      const { errand } = newest
      const orderId = errand.id.split(':')[1] ?? ''
      if (newest.state === 'confirmed' && errand.kind === 'swap') {
        const index = swaps.findIndex((each) => each.orderId === orderId)
        const [gone] = swaps.splice(index, 1)
        allowedAtomic += gone?.usdgAtomic ?? 0n
        state.deskAtomic += gone?.usdgAtomic ?? 0n
      }
      if (newest.state === 'confirmed' && errand.kind === 'refund') {
        const index = refunds.findIndex((each) => each.orderId === orderId)
        const [gone] = refunds.splice(index, 1)
        state.deskAtomic += gone?.amountAtomic ?? 0n
      }
      receipts.delete(newest.transaction)
      Object.assign(newest, { state: 'broadcast', blockNumber: undefined, receipt: undefined })
      ringErrand(errand.id)
    },
    /** Blocks in which nothing of ours is. */
    pass(blocks: bigint): void {
      block += blocks
    },
  }
}

/** An order of the model that nothing has happened to. */
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
    ...Orders.untouched,
    createdAt: 1_000,
    updatedAt: 1_000,
    ...changes,
  }
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
function encode(receipt: Receipt): object {
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
