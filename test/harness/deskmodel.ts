import type { Address, Hex } from 'viem'
import type { Db } from '../../db/open'
import { payments } from '../../db/schema'
import { createTransactions } from '../../db/transactions'
import { write } from '../../db/write'
import { RpcFault } from '../../src/chain/client'
import type { Receipt } from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import * as Abi from '../../src/protocol/Abi'
import type * as Authorization from '../../src/protocol/Authorization'
import * as Crypto from '../../src/protocol/Crypto'
import type { Job, JobEnd } from '../../src/settlement/Job'
import { createStore } from '../../src/settlement/store'
import type { DeskMarket, DeskSettlement } from '../../src/stock/context'
import type { SwapTerms } from '../../src/stock/market'
import type { Order } from '../../src/stock/Order'
import type { Random } from '../soak/random'
import {
  asset,
  deskAddress,
  encode,
  network,
  orderOfJob,
  paymentRow,
  readSigned,
  stock,
  token,
} from './deskorders'

/**
 * A chain and a settlement in memory, for orders by the thousand: the order machine and the database
 * are the real ones. Everything that can happen is an event that the test draws.
 */

type ModelJob = {
  job: Job
  nonce: number
  /** What the desk has signed: read from the bytes that it sends. */
  signed: Authorization.ParsedCall
  /** Of a swap. */
  terms: SwapTerms | undefined
  transaction: Hex
  state: 'broadcast' | 'confirmed' | 'failed' | 'replaced'
  blockNumber: bigint | undefined
  receipt: Receipt | undefined
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

type Refund = {
  orderId: string
  payer: Address
  amountAtomic: bigint
  nonce: Hex
  transaction: Hex
}

/** The world as it is, and levers to change it. */
export function createModel(db: Db, random: Random) {
  const store = createStore(db)
  const transactions = createTransactions(db)
  const jobs = new Map<string, ModelJob>()
  const paid = new Map<string, ModelPayment>()
  const receipts = new Map<Hex, Receipt>()
  const listeners = { job: [] as Listener[], payment: [] as Listener[] }
  const swaps: Swap[] = []
  const refunds: Refund[] = []
  let block = 1_000n
  let nonce = 0
  let serial = 0
  /** EIP-3009 nonces of the desk. */
  const used = new Set<Hex>()
  let terms: SwapTerms | undefined
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
    /** Share of refunds that another account sends before ours. */
    strangers: 0,
    /** Whether the asset refuses a used nonce; else it logs it and succeeds. */
    isStrict: false,
  }

  function emit(id: string): void {
    for (const listener of listeners.payment) listener(id)
  }
  function ringJob(id: string): void {
    for (const listener of listeners.job) listener(id)
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
      job(id) {
        const known = jobs.get(id)
        return known && { ...known }
      },
      onJob: (listener) => void listeners.job.push((id) => isMine() && listener(id)),
      onPayment: (listener) => void listeners.payment.push((id) => isMine() && listener(id)),
      async run(job, { waitMs, write: record }) {
        if (!jobs.has(job.id)) {
          const isReady = await node(born, () => !random.chance(state.faults)).catch(() => false)
          if (!isReady) return { kind: 'unavailable', detail: 'poor', retryAfterSeconds: 1 }
        }
        if (!jobs.has(job.id)) {
          const transaction = hash()
          write(db, () => record?.(transaction))
          const sent = compose(job)
          const unknown = { receipt: undefined, sharesAtomic: undefined, returnedAtomic: undefined }
          const row = { job, nonce: nonce++, transaction, blockNumber: undefined, ...sent }
          jobs.set(job.id, { ...row, state: 'broadcast', ...unknown })
        }
        if (waitMs > 0) await node(born, () => undefined).catch(() => undefined)
        const known = jobs.get(job.id)
        if (known === undefined) throw new Error('a job was forgotten')
        const { transaction, receipt } = known
        if (known.state === 'broadcast') return { kind: 'pending', transaction }
        if (known.state === 'replaced') return { kind: 'replaced', transaction }
        if (receipt === undefined) throw new Error('a job ended without receipt')
        return { kind: known.state, transaction, receipt } satisfies JobEnd
      },
      read: (_, calls) =>
        node(born, () => ({
          blockNumber: block,
          // `authorizationState` of the desk.
          results: calls.map(({ data }) => {
            const isUsed = used.has(`0x${data.slice(-64)}`)
            return `0x${Abi.uint(isUsed ? 1 : 0)}` as Hex
          }),
        })),
      sightOf: ({ transaction, transfer }) =>
        node(born, () => {
          const logs = receipts.get(transaction)?.logs ?? []
          return logs.some((log) => Token.isTransfer(log, transfer)) ? 'shown' : 'unseen'
        }),
      rpc: (_, method, [first]) =>
        node(born, () => {
          if (method === 'eth_blockNumber') return `0x${block.toString(16)}`
          if (method === 'eth_getLogs') return usesOf(first as { topics: readonly Hex[] })
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
      swap(asked) {
        terms = asked
        return []
      },
    }
  }

  /** As the settlement would send it now. */
  function compose(job: Job): Pick<ModelJob, 'signed' | 'terms'> {
    terms = undefined
    if (!('compose' in job)) throw new Error(`${job.id} is not signed`)
    const sign = () => `0x${'11'.repeat(64)}1b` as const
    const signed = readSigned(job.compose({ address: deskAddress, nonce, sign }))
    return { signed, terms }
  }

  function usesOf({ topics }: { topics: readonly Hex[] }): object[] {
    const uses = refunds.filter((each) => each.nonce === topics[2])
    const [topic, ...more] = topics
    return uses.map(({ transaction }) => ({
      address: asset,
      topics: [topic, ...more],
      data: '0x',
      logIndex: '0x0',
      transactionHash: transaction,
      blockNumber: '0x1',
    }))
  }

  /** A reorganisation takes what a transaction moved back, and its nonce is unused again. */
  function undo(nonceOf: Hex, amountAtomic: bigint): void {
    used.delete(nonceOf)
    state.deskAtomic += amountAtomic
  }

  function execute(known: ModelJob): void {
    const { job, signed } = known
    const logs: Receipt['logs'][number][] = []
    let late: Receipt['logs'] = []
    const isRefund = job.kind === 'refund'
    if (isRefund && !used.has(signed.nonce) && random.chance(state.strangers)) payByStranger(known)
    const isUsed = used.has(signed.nonce)
    const success = isRefund && isUsed ? !state.isStrict : !isUsed && isTaken(known)
    if (success && !isUsed) {
      used.add(signed.nonce)
      state.deskAtomic -= signed.amountAtomic
      if (isRefund) logs.push(pay(known, known.transaction))
      else {
        const { change, delivery } = deliver(known)
        logs.push(...change)
        if (!random.chance(state.silent)) logs.push(delivery)
        else if (random.chance(0.5)) late = [delivery]
      }
    }
    known.receipt = receiptOf(known.transaction, success, logs)
    known.blockNumber = block
    known.state = success ? 'confirmed' : 'failed'
    receipts.set(known.transaction, { ...known.receipt, logs: [...logs, ...late] })
    ringJob(job.id)
  }

  /** Whether the asset moves the money, and for a swap the pool takes it. */
  function isTaken(known: ModelJob): boolean {
    const { signed, terms: swap } = known
    if (state.deskAtomic < signed.amountAtomic) return false
    if (swap === undefined) return !state.blocked.has(signed.payee)
    known.sharesAtomic ??= sharesFor(swap.usdgAtomic)
    const part = random.chance(state.shallow) ? BigInt(random.between(1, 99)) : 0n
    known.returnedAtomic ??= (swap.usdgAtomic * part) / 100n
    return !(
      state.isDrained ||
      state.isPaused ||
      state.blocked.has(swap.recipient) ||
      (known.returnedAtomic > 0n && state.blocked.has(swap.payer)) ||
      known.sharesAtomic < swap.floorAtomic
    )
  }

  function deliver({ job, terms: swap, sharesAtomic = 0n, returnedAtomic = 0n }: ModelJob) {
    if (swap === undefined) throw new Error('a swap has terms')
    const { usdgAtomic, payer, recipient } = swap
    swaps.push({ orderId: orderOfJob(job), ...swap, returnedAtomic, sharesAtomic })
    if (returnedAtomic > usdgAtomic) throw new Error('more comes back than went in')
    const change =
      returnedAtomic > 0n ? [transferLog(stock.router, payer, asset, returnedAtomic)] : []
    return { change, delivery: transferLog(token.pool, recipient, token.address, sharesAtomic) }
  }

  function pay({ job, signed }: ModelJob, transaction: Hex) {
    const { payee, amountAtomic, nonce: spent } = signed
    const orderId = orderOfJob(job)
    refunds.push({ orderId, payer: payee, amountAtomic, nonce: spent, transaction })
    return transferLog(deskAddress, payee, asset, amountAtomic)
  }

  /** Sends the same refund from another account right before ours: the signature is public. */
  function payByStranger(known: ModelJob): void {
    if (!isTaken(known)) return
    const transaction = hash()
    used.add(known.signed.nonce)
    state.deskAtomic -= known.signed.amountAtomic
    receipts.set(transaction, receiptOf(transaction, true, [pay(known, transaction)]))
  }

  /** The job is under way again, and what it moved is where it was. */
  function takeBack(known: ModelJob): void {
    const { job, signed, transaction } = known
    const orderId = orderOfJob(job)
    if (known.state === 'confirmed' && job.kind === 'swap') {
      const index = swaps.findIndex((each) => each.orderId === orderId)
      if (index >= 0) {
        swaps.splice(index, 1)
        undo(signed.nonce, signed.amountAtomic)
      }
    }
    const index = refunds.findIndex((each) => each.orderId === orderId)
    const refund = job.kind === 'refund' ? refunds[index] : undefined
    if (refund) {
      // A stranger's refund was right before ours, in vain: both are gone.
      refunds.splice(index, 1)
      receipts.delete(refund.transaction)
      undo(signed.nonce, signed.amountAtomic)
    }
    receipts.delete(transaction)
    Object.assign(known, { state: 'broadcast', blockNumber: undefined, receipt: undefined })
    ringJob(job.id)
  }

  return {
    state,
    swaps,
    refunds,
    jobs,
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
      emit(id)
    },
    /** A reorganisation takes a settled payment away; it is included again later. */
    dropPayment(id: string): void {
      const payment = paid.get(id)
      if (payment === undefined || store.findById(id)?.state !== 'confirmed') return
      if (state.deskAtomic < payment.order.totalAtomic) return
      payment.isPaid = false
      state.deskAtomic -= payment.order.totalAtomic
      receipts.delete(payment.transaction)
      write(db, () => transactions.reopen(network.id, payment.transaction))
      emit(id)
    },
    /** Includes the job with the lowest account nonce, or somebody else's transaction there. */
    mine(isReplaced: boolean): boolean {
      const next = [...jobs.values()]
        .filter((each) => each.state === 'broadcast')
        .sort((left, right) => left.nonce - right.nonce)[0]
      if (next === undefined) return false
      block++
      if (!isReplaced) execute(next)
      else {
        next.state = 'replaced'
        ringJob(next.job.id)
      }
      return true
    },
    /** Takes the newest included job away, at most a few blocks deep. */
    reorganise(): void {
      const newest = [...jobs.values()]
        .filter((each) => each.blockNumber !== undefined && each.blockNumber > block - 4n)
        .sort((left, right) => right.nonce - left.nonce)[0]
      if (newest === undefined) return
      if ([...jobs.values()].some((each) => each.nonce > newest.nonce && each.receipt)) return
      takeBack(newest)
    },
    /**
     * Takes everything of the newest blocks away at once. On the new fork the same bytes may end
     * otherwise: a swap that had failed may succeed, before a refund that had paid.
     */
    reorganiseDeeply(): void {
      const gone = [...jobs.values()]
        .filter(({ blockNumber, receipt }) => receipt && blockNumber && blockNumber > block - 8n)
        .sort((left, right) => right.nonce - left.nonce)
      for (const each of gone) {
        // Only what is above every nonce that stays.
        const isTop = ![...jobs.values()].some((other) => other.nonce > each.nonce && other.receipt)
        if (isTop) takeBack(each)
      }
    },
    /** Blocks in which nothing of ours is. */
    pass(blocks: bigint): void {
      block += blocks
    },
  }
}
