import type { Address, Hex } from 'viem'
import type { Order } from '../../db/Order'
import type { Receipt } from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import * as Abi from '../../src/protocol/Abi'
import type * as Authorization from '../../src/protocol/Authorization'
import * as Crypto from '../../src/protocol/Crypto'
import type { Job } from '../../src/settlement/Job'
import type { SwapTerms } from '../../src/stock/market'
import type { Random } from '../soak/random'
import { asset, deskAddress, orderOfJob, stock, token } from './deskorders'

/** A chain in memory that carries the transactions of the desk. */

export type ModelJob = {
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

export type Listener = (id: string) => void

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

/** How the world behaves; the test changes it. */
type Weather = {
  /** Shares for a thousand USDG. */
  price: bigint
  isDrained: boolean
  isPaused: boolean
  readonly blocked: Set<string>
  /** Share of calls that no node answers. */
  faults: number
  /** Share of successful swaps whose receipt lacks its Transfer: half of them for good. */
  silent: number
  /** Share of swaps that find a pool which takes only a part of the money. */
  shallow: number
  deskAtomic: bigint
  /** Share of refunds that another account sends before ours. */
  strangers: number
  /** Whether the asset refuses a used nonce; else it logs it and succeeds. */
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

/** Of a transaction that is new. */
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
    topics: [Token.transferTopic, Token.addressTopic(from), Token.addressTopic(to)],
    data: `0x${Abi.uint(amountAtomic)}` as Hex,
    index: 0,
  }
}

/** Of a transaction in the newest block. */
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

/** Sends the same refund from another account right before ours: the signature is public. */
function payByStranger(chain: Chain, known: ModelJob): void {
  if (!isTaken(chain, known)) return
  const transaction = newHash(chain)
  chain.used.add(known.signed.nonce)
  chain.state.deskAtomic -= known.signed.amountAtomic
  const logs = [pay(chain, known, transaction)]
  chain.receipts.set(transaction, receiptOf(chain, transaction, true, logs))
}

/** The job is under way again, and what it moved is where it was. */
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
    // A stranger's refund was right before ours, in vain: both are gone.
    refunds.splice(index, 1)
    receipts.delete(refund.transaction)
    undo(chain, signed)
  }
  receipts.delete(transaction)
  Object.assign(known, { state: 'broadcast', blockNumber: undefined, receipt: undefined })
  emit(chain.listeners.job, job.id)
}

/** Moves what a transaction took back to the desk, and its nonce is unused again. */
function undo({ used, state }: Chain, { nonce, amountAtomic }: Authorization.ParsedCall): void {
  used.delete(nonce)
  state.deskAtomic += amountAtomic
}
