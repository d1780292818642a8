import type { Address, Hex } from 'viem'
import type { Order } from '../../db/Order'
import { addressTopic, type Receipt, transferTopic } from '../../src/chain/receipt'
import * as Abi from '../../src/protocol/Abi'
import * as Crypto from '../../src/protocol/Crypto'
import type * as Permit from '../../src/protocol/Permit'
import type { Job } from '../../src/settlement/send/Job'
import type { SwapTerms } from '../../src/stock/market'
import type { Random } from '../soak/random'
import { asset, deskAddress, orderOfJob, stock, token } from './desk-orders'

/** A chain in memory for the transactions of the desk. */

export type ModelJob = {
  job: Job
  nonce: number
  /** The signature of the desk, parsed from the bytes that it sends. */
  signed: Permit.ParsedCall
  /** The terms of the swap; undefined for a job that is not one. */
  terms: SwapTerms | undefined
  transaction: Hex
  state: 'broadcast' | 'confirmed' | 'failed' | 'replaced'
  blockNumber: bigint | undefined
  receipt: Receipt | undefined
  sharesAtomic: bigint | undefined
  returnedAtomic: bigint | undefined
}

/** `wasPaid`: a payment that a reorganisation removes is included again later. */
type ModelPayment = { order: Order; transaction: Hex; isPaid: boolean; wasPaid: boolean }

export type Listener = (id: string) => void

type Swap = {
  orderId: string
  usdgAtomic: bigint
  /** The part that the pool did not take, and its receiver. */
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

/** Behaviour of the model; the test changes it. */
type Weather = {
  /** Shares for a thousand USDG. */
  price: bigint
  isDrained: boolean
  isPaused: boolean
  readonly blocked: Set<string>
  /** Share of calls without an answer of a node. */
  faults: number
  /** Share of successful swaps whose receipt lacks its Transfer: half of them for good. */
  silent: number
  /** Share of swaps whose pool takes only a part of the money. */
  shallow: number
  deskAtomic: bigint
  /** Share of refunds that another account sends before ours. */
  strangers: number
  /** Whether the asset reverts on a used nonce; otherwise it emits a log and succeeds. */
  isStrict: boolean
}

export type Chain = {
  readonly random: Random
  readonly state: Weather
  readonly jobs: Map<string, ModelJob>
  readonly paid: Map<string, ModelPayment>
  readonly receipts: Map<Hex, Receipt>
  readonly swaps: Swap[]
  readonly refunds: Refund[]
  /** EIP-3009 nonces of the desk. */
  readonly used: Set<Hex>
  readonly listeners: { readonly job: Listener[]; readonly payment: Listener[] }
  block: bigint
  serial: number
}

export function createChain(random: Random): Chain {
  return {
    random,
    state: {
      price: 1_000_000_000_000_000n,
      isDrained: false,
      isPaused: false,
      blocked: new Set(),
      faults: 0,
      silent: 0,
      shallow: 0.2,
      deskAtomic: 0n,
      strangers: 0,
      isStrict: false,
    },
    jobs: new Map(),
    paid: new Map(),
    receipts: new Map(),
    swaps: [],
    refunds: [],
    used: new Set(),
    listeners: { job: [], payment: [] },
    block: 1_000n,
    serial: 0,
  }
}

export function emit(listeners: readonly Listener[], id: string): void {
  for (const listener of listeners) listener(id)
}

/** The hash of a new transaction. */
export function newHash(chain: Chain): Hex {
  return Crypto.hex(Crypto.keccak256(`transaction ${++chain.serial}`))
}

export function sharesFor({ state }: Chain, usdgAtomic: bigint): bigint {
  return (usdgAtomic * state.price) / 1_000_000n
}

export function transferLog(
  from: Address,
  to: Address,
  contractAddress: Address,
  amountAtomic: bigint,
) {
  return {
    address: contractAddress,
    topics: [transferTopic, addressTopic(from), addressTopic(to)],
    data: `0x${Abi.uint(amountAtomic)}` as Hex,
    index: 0,
  }
}

/** The receipt of a transaction in the newest block. */
export function receiptOf(
  { block }: Chain,
  transaction: Hex,
  success: boolean,
  logs: Receipt['logs'],
): Receipt {
  const blockHash = Crypto.hex(Crypto.keccak256(`block ${block}`))
  const base = { hash: transaction, success, blockNumber: block, blockHash, logs }
  return { ...base, effectiveGasPriceWei: 1n, gasUsed: 1n, spentWei: 1n }
}

/** Includes a job in the newest block. */
export function execute(chain: Chain, known: ModelJob): void {
  const { state, random, used, receipts } = chain
  const { job, signed } = known
  const logs: Receipt['logs'][number][] = []
  let late: Receipt['logs'] = []
  const isRefund = job.kind === 'refund'
  if (isRefund && !used.has(signed.nonce) && random.chance(state.strangers)) {
    payByStranger(chain, known)
  }
  const isUsed = used.has(signed.nonce)
  const success = isRefund && isUsed ? !state.isStrict : !isUsed && isTaken(chain, known)
  if (success && !isUsed) {
    used.add(signed.nonce)
    state.deskAtomic -= signed.amountAtomic
    if (isRefund) logs.push(pay(chain, known, known.transaction))
    else {
      const { change, delivery } = deliver(chain, known)
      logs.push(...change)
      if (!random.chance(state.silent)) logs.push(delivery)
      else if (random.chance(0.5)) late = [delivery]
    }
  }
  known.receipt = receiptOf(chain, known.transaction, success, logs)
  known.blockNumber = chain.block
  known.state = success ? 'confirmed' : 'failed'
  receipts.set(known.transaction, { ...known.receipt, logs: [...logs, ...late] })
  emit(chain.listeners.job, job.id)
}

/** Whether the asset moves the money, and for a swap the pool takes it. */
function isTaken(chain: Chain, known: ModelJob): boolean {
  const { state, random } = chain
  const { signed, terms: swap } = known
  if (state.deskAtomic < signed.amountAtomic) return false
  if (swap === undefined) return !state.blocked.has(signed.payee)
  known.sharesAtomic ??= sharesFor(chain, swap.usdgAtomic)
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

function deliver({ swaps }: Chain, known: ModelJob) {
  const { job, terms: swap, sharesAtomic = 0n, returnedAtomic = 0n } = known
  if (swap === undefined) throw new Error('a swap has terms')
  const { usdgAtomic, payer, recipient } = swap
  swaps.push({ orderId: orderOfJob(job), ...swap, returnedAtomic, sharesAtomic })
  if (returnedAtomic > usdgAtomic) throw new Error('more comes back than went in')
  const change =
    returnedAtomic > 0n ? [transferLog(stock.router, payer, asset, returnedAtomic)] : []
  return { change, delivery: transferLog(token.pool, recipient, token.address, sharesAtomic) }
}

function pay({ refunds }: Chain, { job, signed }: ModelJob, transaction: Hex) {
  const { payee, amountAtomic, nonce } = signed
  refunds.push({ orderId: orderOfJob(job), payer: payee, amountAtomic, nonce, transaction })
  return transferLog(deskAddress, payee, asset, amountAtomic)
}

/** Sends the same refund from another account directly before ours: the signature is public. */
function payByStranger(chain: Chain, known: ModelJob): void {
  if (!isTaken(chain, known)) return
  const transaction = newHash(chain)
  chain.used.add(known.signed.nonce)
  chain.state.deskAtomic -= known.signed.amountAtomic
  const logs = [pay(chain, known, transaction)]
  chain.receipts.set(transaction, receiptOf(chain, transaction, true, logs))
}

/** The job is in progress again, and its money has not moved. */
export function takeBack(chain: Chain, known: ModelJob): void {
  const { swaps, refunds, receipts } = chain
  const { job, signed, transaction } = known
  const orderId = orderOfJob(job)
  if (known.state === 'confirmed' && job.kind === 'swap') {
    const index = swaps.findIndex((each) => each.orderId === orderId)
    if (index >= 0) {
      swaps.splice(index, 1)
      undo(chain, signed)
    }
  }
  const index = refunds.findIndex((each) => each.orderId === orderId)
  const refund = job.kind === 'refund' ? refunds[index] : undefined
  if (refund) {
    // Another account's refund was directly before ours and failed: both are removed.
    refunds.splice(index, 1)
    receipts.delete(refund.transaction)
    undo(chain, signed)
  }
  receipts.delete(transaction)
  Object.assign(known, { state: 'broadcast', blockNumber: undefined, receipt: undefined })
  emit(chain.listeners.job, job.id)
}

/** Returns the money of a transaction to the desk and marks its nonce as unused. */
function undo({ used, state }: Chain, { nonce, amountAtomic }: Permit.ParsedCall): void {
  used.delete(nonce)
  state.deskAtomic += amountAtomic
}
